// The Rollout view: the conversation, its graph and tokens, what became of it and why, and other rollouts beside it.

import { h, show, said, visible } from './dom.js';
import { get, listen } from './api.js';
import { num, whole, seconds, clock, words } from './format.js';
import { badge, dot, rewardMark } from './rollouts.js';
import { tokensOf, legendOf, scales } from './tokens.js';

const maxBeside = 8;

export async function rolloutView(box, { signal, argument, query, replace, go }) {
  const id = decodeURIComponent(argument);
  let colour = query.get('tokens') ?? '';
  let beside = (query.get('beside') ?? '').split(',').filter(Boolean).slice(0, maxBeside);
  let leaf = query.has('leaf') ? Number(query.get('leaf')) : null;
  const main = await get('/api/rollouts/' + encodeURIComponent(id), signal);
  const others = new Map(), most = Math.max(1, ...main.group.concat(main.same_task).map(g => Math.abs(g.reward ?? 0)));
  const columns = h('div.columns'), head = h('header.rollout-head'), side = h('aside.side', { 'aria-label': 'About the rollout' }), tools = h('div.controls');
  const body = h('div.rollout-body', {}, columns, side);
  show(box, head, tools, body);

  function note() {
    colour ? query.set('tokens', colour) : query.delete('tokens');
    beside.length ? query.set('beside', beside.join(',')) : query.delete('beside');
    leaf !== null ? query.set('leaf', leaf) : query.delete('leaf');
    replace(query);
  }

  const r = main.row;
  const where = r.eval ? 'eval ' + r.eval : 'training';
  const sibling = step => {
    const i = main.group.findIndex(x => x.id === main.id);
    return main.group[i + step];
  };
  show(head, h('h1', {}, visible(r.env), ' ', h('small', {}, `task ${r.task} · group ${r.group}.${r.rollout}`)),
    h('p.became', {}, dot(r.fate || (r.group_fate && r.group_fate !== 'packed' ? r.group_fate : '')), main.why, r.step ? [' ', h('a', { href: '/step/' + r.step }, 'See the batch')] : null),
    h('dl.facts', {},
      fact('reward', r.reward === null ? '–' : h('b', {}, num(r.reward))), fact('of', visible(where)), fact('version', r.version === undefined || r.version === null ? '–' : r.version_end !== undefined && r.version_end !== r.version ? `${r.version} to ${r.version_end}` : r.version),
      fact('tokens', r.tokens ? whole(r.tokens) : '–'), fact('took', seconds(r.seconds)), fact('ended', visible(words(r.stop ?? '–')), r.truncated && h('small.tag', {}, 'cut')), r.time && fact('at', clock(r.time)),
      r.policy && fact('policy', visible(r.policy)), r.attempt ? fact('try', r.attempt + 1) : null),
    h('nav.walk', { 'aria-label': 'Rollouts of the group' }, walk('[', '‹ previous', sibling(-1)), walk(']', 'next ›', sibling(1))));
  function walk(key, text, to) {
    return to ? h('a', { href: '/rollout/' + to.id + (colour ? '?tokens=' + colour : ''), title: key }, text) : h('span', {}, text);
  }
  function fact(name, ...value) { return h('div', {}, h('dt', {}, name), h('dd', {}, value)); }

  const scale = h('select', { id: 'scale', onchange: e => { colour = e.target.value; note(); drawTools(); drawColumns(); } },
    [['', 'text'], ...scales.map(([k, t]) => [k, 'tokens by ' + t])].map(([v, t]) => h('option', { value: v, selected: v === colour }, t)));
  function drawTools() {
    show(tools, h('label', { for: 'scale' }, 'Show'), scale, colour && legendOf(colour), h('span.grow'),
      main.group.length > 1 && h('button', { type: 'button', 'aria-pressed': String(beside.length > 0), onclick: () => setBeside(beside.length ? [] : main.group.map(g => g.id).filter(x => x !== main.id).slice(0, maxBeside - 1)) }, beside.length ? 'Close the others' : 'Group side by side'));
  }
  async function setBeside(list) {
    beside = list;
    note();
    drawTools();
    await loadOthers();
    drawColumns();
    drawSide();
  }
  async function loadOthers() {
    await Promise.all(beside.filter(b => !others.has(b)).map(async b => {
      try { others.set(b, await get('/api/rollouts/' + encodeURIComponent(b), signal)); } catch (e) { others.set(b, { problem: e.message }); }
    }));
  }

  function drawColumns() {
    const all = [main, ...beside.map(b => others.get(b) ?? { problem: 'not loaded' })];
    body.classList.toggle('many', all.length > 1);
    columns.style.setProperty('--n', all.length);
    show(columns, all.map((x, i) => x.problem ? h('section.talk', {}, h('p.problem', {}, x.problem)) : talk(x, i === 0, all.length > 1)));
  }

  // talk is one conversation: the messages from a root to a leaf.
  function talk(x, own, many) {
    const kids = x.nodes.map(() => []);
    x.nodes.forEach((n, i) => { if (n.parent >= 0 && n.parent < x.nodes.length) kids[n.parent].push(i); });
    const leaves = x.nodes.map((_, i) => i).filter(i => !kids[i].length);
    const chosen = own && leaf !== null && leaves.includes(leaf) ? leaf : leaves.at(-1);
    const path = [];
    for (let k = chosen, n = 0; k !== undefined && k >= 0 && n <= x.nodes.length; k = x.nodes[k].parent, n++) path.unshift(k);
    const section = h('section.talk', { 'aria-label': 'Conversation' });
    if (many) {
      section.append(h('header', {}, h('a', { href: '/rollout/' + x.id }, `${x.row.group}.${x.row.rollout}`), x.row.version !== undefined && x.row.version !== null && h('small', {}, ' version ' + x.row.version), h('span.grow'), x.row.reward === null ? '–' : rewardMark(x.row.reward, most)));
    }
    if (own && leaves.length > 1) section.append(agentsOf(x, kids, chosen), graph(x, kids, path));
    for (const k of path) section.append(message(x, k));
    for (const e of x.errors) section.append(h('article.message.failed', {}, h('header', {}, h('b', {}, visible(e.type))), said(e.message), e.traceback && h('details', {}, h('summary', {}, 'Traceback'), said(e.traceback))));
    if (!path.length && !x.errors.length) section.append(h('p.empty', {}, 'Nothing was said.'));
    return section;
  }

  function message(x, k) {
    const n = x.nodes[k];
    const text = h('div.text');
    const versions = [...new Set(n.versions ?? [])];
    const article = h('article.message', { class: 'role-' + (['system', 'user', 'assistant', 'tool'].includes(n.role) ? n.role : 'user'), id: x === main ? 'node-' + k : null },
      h('header', {}, h('b', {}, visible(n.role)), n.agent && h('small.tag', {}, visible(n.agent)), n.tool_call_id && h('small', {}, visible(n.tool_call_id)), h('span.grow'),
        n.reward !== undefined && h('small', {}, 'branch reward ' + num(n.reward)), versions.length > 0 && h('small', {}, (versions.length > 1 ? 'versions ' : 'version ') + versions.join(', ')), n.tokens > 0 && h('small', { title: n.sampled ? `${n.sampled} sampled at temperature ${n.temperature}` : '' }, whole(n.tokens) + ' tokens')), text);
    if (colour && n.tokens > 0) {
      show(text, h('p.empty', {}, '…'));
      tokensOf(`/api/rollouts/${encodeURIComponent(x.id)}/tokens?node=${k}`, colour, signal).then(t => show(text, t)).catch(e => { if (!signal.aborted) show(text, h('p.problem', {}, e.message)); });
      return article;
    }
    show(text, (n.images ?? []).map((i, at) => i.shown ? h('img.shown', { src: `/api/rollouts/${encodeURIComponent(x.id)}/images/${k}/${at}`, alt: i.alt, loading: 'lazy' }) : h('p.empty', {}, 'A picture that cannot be shown: ', visible(i.alt || 'nothing is said of it'))),
      n.reasoning && h('details.reasoning', { open: true }, h('summary', {}, 'Reasoning'), said(n.reasoning)),
      n.content !== '' || !n.tool_calls?.length ? (n.content === '' ? h('p.empty', {}, 'empty') : said(n.content)) : null,
      (n.tool_calls ?? []).map(c => h('div.call', {}, h('header', {}, h('b', {}, visible(c.name)), c.id && h('small', {}, visible(c.id))), said(pretty(c.arguments)))));
    return article;
  }

  // agentsOf lets one choose whose conversation is read, where several agents speak.
  function agentsOf(x, kids, chosen) {
    const last = new Map();
    x.nodes.forEach((n, k) => { if (n.agent && !kids[k].length) last.set(n.agent, k); });
    if (last.size < 2) return '';
    return h('div.controls', { role: 'group', 'aria-label': 'Agents' }, [...last].map(([agent, k]) =>
      h('button.agent', { type: 'button', 'aria-pressed': String(x.nodes[chosen].agent === agent), onclick: () => { leaf = k; note(); drawColumns(); } },
        visible(agent), x.nodes[k].reward !== undefined ? ' ' + num(x.nodes[k].reward) : '')));
  }

  // graph draws the messages as a tree, a column for each step from the root.
  function graph(x, kids, path) {
    const depth = [], line = [];
    let lines = 0;
    const place = (k, d) => {
      depth[k] = d;
      if (!kids[k].length) { line[k] = lines++; return; }
      for (const c of kids[k]) place(c, d + 1);
      line[k] = line[kids[k][0]];
    };
    if (x.nodes.length > 2000) return h('p.empty', {}, `${whole(x.nodes.length)} messages: too many to draw.`);
    x.nodes.forEach((n, k) => { if (n.parent < 0) place(k, 0); });
    const on = new Set(path), dx = 26, dy = 22;
    const at = k => [14 + dx * (depth[k] ?? 0), 14 + dy * (line[k] ?? 0)];
    const width = 28 + dx * Math.max(0, ...depth.filter(d => d !== undefined)), height = 28 + dy * Math.max(0, lines - 1);
    return h('div.graph', {}, h('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'group', 'aria-label': 'Message graph' },
      x.nodes.map((n, k) => n.parent >= 0 && h('path.twig', { class: on.has(k) ? 'on' : '', d: `M${at(n.parent).join(' ')}L${at(n.parent)[0] + 8} ${at(k)[1]}L${at(k).join(' ')}` })),
      x.nodes.map((n, k) => h('circle.dot', { class: 'role-' + n.role + (on.has(k) ? ' on' : ''), cx: at(k)[0], cy: at(k)[1], r: 6, tabindex: 0, role: 'button', onclick: () => pick(k), onkeydown: e => { if (e.key === 'Enter') pick(k); } }, h('title', {}, `${k}: ${n.agent ? n.agent + ', ' : ''}${n.role}, ${n.tokens} tokens`)))));
    function pick(k) {
      while (kids[k].length) k = kids[k].at(-1);
      leaf = k;
      note();
      drawColumns();
    }
  }

  function drawSide() {
    const known = Object.entries(main.rewards ?? {}).sort((a, b) => a[0].localeCompare(b[0]));
    const metrics = Object.entries(main.metrics ?? {}).sort((a, b) => a[0].localeCompare(b[0]));
    const total = Object.values(main.timing).reduce((a, b) => a + Math.max(0, b), 0);
    show(side,
      known.length > 0 && panel('Rewards', h('table.small', {}, known.map(([k, v]) => h('tr', {}, h('th', { scope: 'row' }, visible(k)), h('td.n', {}, v === null ? 'does not apply' : rewardMark(v)))))),
      metrics.length > 0 && panel('Metrics', h('table.small', {}, metrics.map(([k, v]) => h('tr', {}, h('th', { scope: 'row' }, visible(k)), h('td.n', {}, num(v)))))),
      total > 0 && panel('Time', h('div.stack', { 'aria-hidden': 'true' }, Object.values(main.timing).map((v, i) => h('i', { css: { '--part': Math.max(0, v) / total, '--key': `var(--c${i})` } }))), h('table.small', {}, Object.entries(main.timing).map(([k, v], i) => h('tr', {}, h('th', { scope: 'row' }, h('i.swatch', { css: { '--key': `var(--c${i})` } }), k), h('td.n', {}, seconds(v)))))),
      main.group.length > 1 && panel(`Group ${r.group}`, h('ul.rows', {}, main.group.map(g => line(g, `${g.rollout}${g.attempt ? '·' + (g.attempt + 1) : ''}`)))),
      main.same_task.length > 1 && panel(['Task ', r.task, ' over time'], overTime(main.same_task), h('p', {}, h('a', { href: `/rollouts?env=${encodeURIComponent(r.env)}&task=${r.task}&sort=version${r.eval ? '&eval=' + encodeURIComponent(r.eval) : ''}` }, `all ${main.same_task.length >= 200 ? 'of them' : main.same_task.length}`))),
      panel('Task', said(pretty(main.task || '(looked up by its number)'))),
      main.info && panel('Information', said(pretty(main.info))),
      panel('Where from', h('table.small', {}, [['trace', main.id], ['environment', `${r.env} ${main.env_version}`], ['split', main.split], ['server', main.instance], ['model', main.model], ['seed', main.seed]].filter(x => x[1] !== '').map(([k, v]) => h('tr', {}, h('th', { scope: 'row' }, k), h('td', {}, visible(String(v))))))));
  }
  function panel(title, ...content) { return h('section.panel', {}, h('h3', {}, title), content); }
  function line(g, name) {
    const on = g.id === main.id;
    return h('li', { class: on ? 'on' : '' }, h('a', { href: '/rollout/' + g.id, 'aria-current': on ? 'true' : null }, name), g.reward === null ? h('span.n', {}, '–') : rewardMark(g.reward, most), badge(g.fate), h('span.grow'),
      !on && h('button.quiet', { type: 'button', title: 'Beside this one', 'aria-label': `Rollout ${name} beside this one`, onclick: () => setBeside(beside.includes(g.id) ? beside.filter(b => b !== g.id) : [...beside, g.id].slice(-maxBeside + 1)) }, beside.includes(g.id) ? '−' : '+'));
  }

  // overTime is the reward of a task by version; each point opens its rollout beside this one.
  function overTime(rows) {
    const points = rows.filter(x => x.reward !== null && x.version !== undefined && x.version !== null);
    if (points.length < 2) return h('p.empty', {}, 'No other version has played it.');
    const W = 260, H = 84, vs = points.map(p => p.version), ys = points.map(p => p.reward);
    const v0 = Math.min(...vs), v1 = Math.max(...vs), y0 = Math.min(0, ...ys), y1 = Math.max(1, ...ys);
    const px = v => 6 + (W - 12) * (v - v0) / (v1 - v0 || 1), py = y => H - 16 - (H - 24) * (y - y0) / (y1 - y0 || 1);
    return h('svg.overtime', { viewBox: `0 0 ${W} ${H}`, role: 'group', 'aria-label': 'Reward of this task by version' },
      h('line.base', { x1: 4, x2: W - 4, y1: py(y0), y2: py(y0) }), h('text', { x: 4, y: H - 2 }, 'version ' + v0), h('text', { x: W - 4, y: H - 2, 'text-anchor': 'end' }, v1),
      points.map(p => h('circle', { class: p.id === main.id ? 'own' : '', cx: px(p.version), cy: py(p.reward), r: p.id === main.id ? 5 : 3.5, tabindex: 0, role: 'button', onclick: () => compare(p), onkeydown: e => { if (e.key === 'Enter') compare(p); } }, h('title', {}, `version ${p.version}: reward ${num(p.reward)}`))));
    function compare(p) { if (p.id !== main.id) setBeside([p.id]); }
  }

  addEventListener('keydown', e => {
    if (e.target.closest?.('input, textarea, select') || e.metaKey || e.ctrlKey || e.altKey) return;
    const to = e.key === '[' ? sibling(-1) : e.key === ']' ? sibling(1) : null;
    if (to) go('/rollout/' + to.id + (colour ? '?tokens=' + colour : ''));
  }, { signal });
  // What became of it may be decided while one looks.
  if (!r.fate) {
    listen('change', async () => {
      if (main.row.fate || document.hidden) return;
      const now = await get('/api/rollouts/' + encodeURIComponent(id), signal).catch(() => null);
      if (now?.row.fate && !signal.aborted) go(location.pathname + location.search);
    }, signal);
  }

  drawTools();
  await loadOthers();
  if (signal.aborted) return;
  drawColumns();
  drawSide();
}

// pretty is JSON with its lines, and other text as it is.
function pretty(text) {
  try {
    const v = JSON.parse(text);
    return typeof v === 'object' ? JSON.stringify(v, null, 2) : text;
  } catch { return text; }
}
