// Tokens as they were sampled and trained, coloured by one of their figures.

import { h, show, visible } from './dom.js';
import { get } from './api.js';
import { num } from './format.js';

export const scales = [['logprobs', 'log-probability'], ['advantages', 'advantage'], ['mask', 'mask'], ['ref', 'teacher']];

// tint is a token's background: for log-probabilities the less likely the stronger, for others blue is good and red is bad.
function tint(t, i, by) {
  if (by === 'mask') return t.trained?.[i] ? ['--good', 0.35] : t.mask[i] ? ['--warn', 0.3] : null;
  if (by === 'ref') {
    const a = t.ref_logprobs?.[i], b = t.logprobs[i];
    if (a === null || a === undefined || b === null) return null;
    const d = a - b;
    return [d > 0 ? '--plus' : '--minus', Math.min(0.75, Math.abs(d) / 3)];
  }
  const v = t[by]?.[i];
  if (v === null || v === undefined) return null;
  if (by === 'logprobs') return ['--warn', Math.min(0.8, -v / 5)];
  return v === 0 ? ['--slate', 0.12] : [v > 0 ? '--plus' : '--minus', Math.min(0.8, 0.15 + Math.abs(v) / 2.5)];
}

function label(text, id) {
  if (text === undefined) return '[' + id + ']';
  if (text === '') return '∅';
  return text.replaceAll('\n', '⏎\n').replaceAll('\t', '⇥').replace(/^ | $/g, '·');
}

function describe(t, i) {
  const facts = [`token ${t.ids[i]}`];
  const say = (name, v) => { if (v !== null && v !== undefined) facts.push(`${name} ${num(v)}`); };
  say('log-probability', t.logprobs[i]);
  if (t.logprobs[i] !== null) facts.push(`probability ${(100 * Math.exp(t.logprobs[i])).toFixed(1)} %`);
  say('advantage', t.advantages?.[i]);
  say('teacher', t.ref_logprobs?.[i]);
  say('reward', t.rewards?.[i]);
  facts.push(t.mask[i] ? 'sampled' : 'not sampled');
  if (t.trained) facts.push(t.trained[i] ? 'trained' : 'not trained');
  return facts.join('\n');
}

// tokensOf draws the tokens that an address answers, a part at a time.
export async function tokensOf(address, by, signal) {
  const box = h('div.tokens', { dir: 'ltr' });
  const note = h('p.empty');
  let from = 0;
  async function part() {
    const t = await get(address + (address.includes('?') ? '&' : '?') + 'from=' + from, signal);
    const ids = t.ids ?? [];
    for (let i = 0; i < ids.length; i++) {
      const text = label(t.text?.[i], ids[i]);
      const c = tint(t, i, by);
      box.append(h('span.tok', { title: describe(t, i), class: t.mask[i] ? 'sampled' : '', css: c ? { 'background-color': `color-mix(in srgb, var(${c[0]}) ${Math.round(100 * c[1])}%, transparent)` } : null }, visible(text)));
    }
    from += ids.length;
    show(note, t.note, from < t.total && h('button.quiet', { type: 'button', onclick: part }, `${t.total - from} more tokens`), t.total === 0 && 'No tokens.');
    return t;
  }
  await part();
  return h('div', {}, box, note);
}

// legend says what the colours mean.
export function legendOf(by) {
  const key = (name, text, part = 60) => h('span.key', {}, h('i', { css: { '--key': `color-mix(in srgb, var(${name}) ${part}%, transparent)` } }), text);
  return h('span.legend', {}, by === 'logprobs' ? [key('--warn', 'unlikely: −5 or less'), key('--warn', 'likely', 8)] : by === 'advantages' ? [key('--plus', 'made likelier'), key('--minus', 'made less likely'), key('--slate', 'zero', 14)]
    : by === 'ref' ? [key('--plus', 'the teacher finds it likelier'), key('--minus', 'less likely')] : [key('--good', 'trained', 35), key('--warn', 'sampled, not trained', 30)]);
}
