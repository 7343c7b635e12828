// The Steps view: the batch of a step, exactly as the trainer got it, and the way back to the rollouts it is made of.

import { h, show, visible } from './dom.js';
import { get } from './api.js';
import { num, whole, percent, bytes, words } from './format.js';
import { colour } from './chart.js';
import { rewardMark } from './rollouts.js';
import { tokensOf, legendOf } from './tokens.js';

export async function stepView(box, { signal, argument, query, replace, go }) {
  let step = Number(argument ?? 0);
  if (!step) {
    const run = await get('/api/run?points=2', signal);
    if (!run.packed_step) { show(box, h('p.empty', {}, 'No step has been packed yet.')); return; }
    go('/step/' + run.packed_step);
    return;
  }
  const a = await get('/api/steps/' + step, signal);
  const samples = a.batches.flatMap(b => b.samples.map((s, i) => ({ ...s, rank: b.rank, index: b.index, at: i })));
  const envs = [...new Set(samples.map(s => s.env))].sort();
  const envColour = e => colour(envs.indexOf(e));
  const panel = h('div.picked');

  const slide = h('input', { type: 'range', min: a.first || 1, max: Math.max(a.last, step), value: step, 'aria-label': 'Step', onchange: e => go('/step/' + e.target.value), oninput: e => { which.textContent = whole(Number(e.target.value)); } });
  const which = h('b', {}, whole(step));
  const jump = (to, text, key) => to >= (a.first || 1) && to <= a.last ? h('a', { href: '/step/' + to, title: key }, text) : h('span', {}, text);
  const head = h('header.step-head', {}, h('h1', {}, 'Step ', which), jump(step - 1, '‹ ' + (step - 1), '['), slide, jump(step + 1, (step + 1) + ' ›', ']'));
  addEventListener('keydown', e => {
    if (e.target.closest?.('input, textarea, select') || e.metaKey || e.ctrlKey || e.altKey) return;
    const to = step + ({ '[': -1, ']': 1 }[e.key] ?? 0);
    if (to !== step && to >= 1 && to <= a.last) go('/step/' + to);
  }, { signal });

  const find = (stage, name) => a.figures.find(f => f.stage === stage && f.name === name && !Object.keys(f.labels ?? {}).length)?.value;
  const tile = (label, value, detail) => h('div.tile', {}, h('span.label', {}, label), h('span.value', {}, value), detail && h('span.detail', {}, detail));
  const tokens = a.batches.reduce((n, b) => n + b.tokens, 0), trained = a.batches.reduce((n, b) => n + b.trained, 0);
  const rewards = samples.map(s => s.reward).filter(r => r !== null);
  const oldest = Math.max(0, ...samples.map(s => s.off_policy ?? 0));
  const tiles = h('div.tiles', {}, tile('rollouts', whole(new Set(samples.map(s => s.group + '/' + s.rollout)).size), `${whole(a.groups)} groups`), tile('tokens', num(tokens), tokens ? `${percent(trained / tokens)} trained` : ''),
    tile('reward', rewards.length ? num(rewards.reduce((x, y) => x + y, 0) / rewards.length) : '–', 'mean of its samples'), tile('oldest', whole(oldest), 'off-policy steps'),
    tile('loss', num(find('trainer', 'loss'))), tile('entropy', num(find('trainer', 'entropy'))), tile('KL', num(find('trainer', 'kl'))), a.version && tile('made version', whole(a.version.version), `${words(a.version.kind)}, ${bytes(a.version.bytes)}`));

  // The micro-batches: a bar each, its samples as wide as they are long.
  const longest = Math.max(1, ...a.batches.map(b => b.tokens));
  const bars = h('section.card', {}, h('header', {}, h('h3', {}, `${whole(a.batches.length)} micro-batch${a.batches.length === 1 ? '' : 'es'}`), h('div.legend', {}, envs.map(e => h('span.key', {}, h('i', { css: { '--key': `var(${envColour(e)})` } }), visible(e))))),
    h('div.micro', {}, a.batches.map(b => h('div.micro-row', {}, h('span.bin', {}, `${b.rank}·${b.index}`), h('span.track', { css: { width: Math.max(2, 100 * b.tokens / longest) + '%' } },
      b.samples.map((s, i) => h('i', { title: `${s.env} ${s.group}.${s.rollout}: ${s.tokens} tokens, version ${s.version ?? '–'}`, css: { 'flex-grow': s.tokens || 1, '--key': `var(${envColour(s.env)})` }, onclick: () => pick({ ...s, rank: b.rank, index: b.index, at: i }) }))), h('small', {}, num(b.tokens))))));

  let by = query.get('tokens') ?? 'advantages';
  async function pick(s) {
    query.set('sample', `${s.rank}.${s.index}.${s.at}`);
    replace(query);
    const choose = h('select', { 'aria-label': 'Colour by', onchange: e => { by = e.target.value; query.set('tokens', by); pick(s); } }, [['advantages', 'advantage'], ['logprobs', 'log-probability'], ['mask', 'mask']].map(([v, t]) => h('option', { value: v, selected: v === by }, 'by ' + t)));
    const body = h('div', {}, h('p.empty', {}, '…'));
    show(panel, h('section.card', {}, h('header', {}, h('h3', {}, `As the trainer got it: ${s.group}.${s.rollout}`, s.branch ? ` branch ${s.branch}` : ''), choose, legendOf(by), h('span.grow'), s.id && h('a', { href: '/rollout/' + s.id }, 'Rollout'), h('button.quiet', { type: 'button', 'aria-label': 'Close', onclick: () => { query.delete('sample'); replace(query); show(panel); } }, '×')), body));
    try { show(body, await tokensOf(`/api/steps/${step}/tokens?rank=${s.rank}&index=${s.index}&sample=${s.at}`, by, signal)); } catch (e) { if (!signal.aborted) show(body, h('p.problem', {}, e.message)); }
    panel.scrollIntoView({ block: 'nearest' });
  }

  const most = Math.max(1, ...rewards.map(Math.abs));
  const table = h('tbody');
  const foot = h('div.foot');
  let shownRows = 0;
  const sorted = [...samples].sort((x, y) => x.group - y.group || x.rollout - y.rollout || x.branch - y.branch);
  function more() {
    let group = shownRows ? sorted[shownRows - 1].group : null;
    for (const s of sorted.slice(shownRows, shownRows + 64)) {
      table.append(h('tr', { class: s.group !== group ? 'first' : '', tabindex: 0, onkeydown: e => { if (e.key === 'Enter') pick(s); }, onclick: e => { if (!e.target.closest('a')) pick(s); } },
        h('td', {}, s.group !== group ? [h('i.swatch', { css: { '--key': `var(${envColour(s.env)})` } }), visible(s.env)] : ''), h('td.n', {}, s.group !== group && s.task !== undefined ? h('a', { href: `/rollouts?env=${encodeURIComponent(s.env)}&task=${s.task}&sort=version` }, s.task) : ''),
        h('td.n', {}, s.id ? h('a', { href: '/rollout/' + s.id }, `${s.group}.${s.rollout}`) : `${s.group}.${s.rollout}`, s.branch ? h('small', {}, ' b' + s.branch) : ''),
        h('td.n', {}, s.reward === null ? '–' : rewardMark(s.reward, most)), h('td.n', {}, s.advantage === null ? '–' : h('span', { class: s.advantage > 0 ? 'plus' : s.advantage < 0 ? 'minus' : '' }, num(s.advantage))),
        h('td.n', {}, s.version ?? '–'), h('td.n', {}, s.off_policy ?? '–'), h('td.n', {}, whole(s.tokens)), h('td.n', {}, whole(s.trained)), h('td.n', {}, `${s.rank}·${s.index}`)));
      group = s.group;
    }
    shownRows = Math.min(sorted.length, shownRows + 64);
    show(foot, shownRows < sorted.length && h('button', { type: 'button', onclick: more }, `More of ${whole(sorted.length)}`));
  }
  more();

  const figures = h('details.rest-curves', {}, h('summary', {}, 'All figures of the step'), h('table.small', {}, a.figures.map(f => h('tr', {}, h('th', { scope: 'row' }, f.stage + ' ' + words(f.name), ' ', h('small', {}, Object.values(f.labels ?? {}).join(' '))), h('td.n', {}, num(f.value))))));
  show(box, head, a.note && h('p.notice.info', {}, a.note), tiles, a.batches.length > 0 && bars, panel,
    samples.length > 0 && h('div.table-box', {}, h('table.list', {}, h('thead', {}, h('tr', {}, ['env', 'task', 'rollout', 'reward', 'advantage', 'version', 'off-policy', 'tokens', 'trained', 'micro-batch'].map(t => h('th', { scope: 'col' }, t)))), table)), foot, figures);
  const wanted = query.get('sample')?.split('.').map(Number);
  const chosen = wanted && samples.find(s => s.rank === wanted[0] && s.index === wanted[1] && s.at === wanted[2]);
  if (chosen) await pick(chosen);
}
