// Elements are made here and nowhere else; text becomes a text node, never markup.

const svgNames = new Set(['svg', 'g', 'path', 'rect', 'circle', 'line', 'text', 'title', 'tspan', 'defs', 'marker']);

// h makes an element: h('a.link', {href, onclick}, children…). Children are elements, text, arrays of them, or nothing.
export function h(what, props = {}, ...children) {
  const [tag, ...classes] = what.split('.');
  const svg = svgNames.has(tag) && !(tag === 'title' && props.html);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  if (classes.length) e.setAttribute('class', classes.join(' '));
  for (const [k, v] of Object.entries(props ?? {})) {
    if (v === undefined || v === null || v === false) continue;
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k === 'css') for (const [p, x] of Object.entries(v)) e.style.setProperty(p, x);
    else if (k === 'class') e.setAttribute('class', [...classes, v].join(' '));
    else if (k === 'value' || k === 'checked' || k === 'selected' || k === 'disabled') e[k] = v;
    else e.setAttribute(k, v === true ? '' : String(v));
  }
  add(e, children);
  return e;
}

function add(e, children) {
  for (const c of children) {
    if (c === undefined || c === null || c === false) continue;
    if (Array.isArray(c)) add(e, c);
    else e.append(c instanceof Node ? c : document.createTextNode(String(c)));
  }
}

// show puts children in the place of what an element holds.
export function show(e, ...children) {
  e.replaceChildren();
  add(e, children);
  return e;
}

// Characters that change how others look, or cannot be seen: controls, marks of direction, invisible ones.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

// visible is text of others as nodes: what cannot be seen, or would turn the text around, is shown by its number.
export function visible(text) {
  const nodes = [];
  let at = 0;
  for (const m of text.matchAll(hidden)) {
    if (m.index > at) nodes.push(text.slice(at, m.index));
    const code = m[0].codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
    nodes.push(h('span.ctl', { title: 'U+' + code }, '\u2039' + code + '\u203a'));
    at = m.index + m[0].length;
  }
  nodes.push(text.slice(at));
  return nodes;
}

const longText = 8000;

// said is text of others in a box of its own, cut where it is long.
export function said(text, kind = 'pre.said') {
  const box = h(kind, { dir: 'auto' });
  if (text.length <= longText) return show(box, visible(text));
  const more = h('button.quiet', { type: 'button', onclick: () => show(box, visible(text)) }, `show all ${text.length.toLocaleString('en')} characters`);
  return show(box, visible(text.slice(0, longText)), '… ', more);
}
