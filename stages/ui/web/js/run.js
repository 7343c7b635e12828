// The Run view: does it learn, where is it slow, what became of the rollouts; and another run beside it.

import { h, show } from './dom.js';
import { get, events, latest, listen } from './api.js';
import { Chart, smooth, spark, colour } from './chart.js';
import { FlowPicture } from './flow.js';
import { num, whole, percent, perSecond, words, bytes } from './format.js';

export const fateColours = { packed: '--good', filtered: '--slate', stale: '--warn', errored: '--bad', timed_out: '--bad2', overlong: '--c4', cancelled: '--faint', evaluated: '--c0', open: '--muted' };

// The figures of the trainer that everybody looks at, and those of its speed.
const learning = [
  ['loss', 'Loss', 'Of the step, all components'], ['entropy', 'Entropy', 'Mean over sampled tokens, in nats: near 0 the policy has stopped to explore'],
  ['kl', 'KL', 'Between the policy that sampled and the one that is trained: how far off-policy the step is'],
  ['ratio', 'Ratio', 'Mean probability ratio of the two: near 1 is right'], ['grad_norm', 'Gradient norm', 'Before it is clipped'],
  ['lr', 'Learning rate', ''],
];

const byName = (curves, stage, name) => curves.filter(c => c.stage === stage && c.name === name);

export async function runView(box, { signal, query, replace, go }) {
  let weight = Number(query.get('smooth') ?? 0.8) || 0, beside = query.get('compare') ?? '', other = null, run = null;
  const charts = [];
  const chart = (title, options) => { const c = new Chart(title, { pick: s => go('/step/' + s), ...options }); charts.push(c); return c; };
  const step = { x: 'step' };
  const reward = chart('Reward of training rollouts', { ...step, height: 230, about: 'Mean of all rollouts decided since the step before, whatever became of them. A click goes to the step.' });
  const evals = chart('Evals', { x: 'version', height: 230, pick: null, about: 'avg@k with its 95 % interval, on held-out tasks; dashed: policies that need no model' });
  const figures = learning.map(([name, title, about]) => [name, chart(title, { ...step, about })]);
  const speed = chart('Tokens trained per second', { ...step, min: 0 });
  const wait = chart('Trainer waits', { ...step, min: 0, max: 1, format: percent, about: 'Share of a step’s time in which no batch was there' });
  const ends = chart('Where groups end', { ...step, stacked: true, min: 0, about: 'Groups by step: trained, or taken by what' });
  const stale = chart('Off-policy steps', { ...step, min: 0, about: 'Between the policy that played and the step that trained: mean and most of a step' });
  const tokens = chart('Tokens of rollouts', { ...step, min: 0, about: 'Mean length of the rollouts that were trained, by environment' });
  const hist = h('section.card.hist');
  const flow = new FlowPicture();
  const tiles = h('div.tiles'), notices = h('div.notices'), more = h('div.grid.more'), rest = h('details.rest-curves', {}, h('summary', {}, 'All other curves'), more);
  const restCharts = new Map();
  signal.addEventListener('abort', () => { charts.forEach(c => c.end()); flow.end(); restCharts.forEach(c => c.end()); });

  const slider = h('input', { type: 'range', min: 0, max: 0.99, step: 0.01, value: weight, id: 'smooth', oninput: e => { weight = Number(e.target.value); note(); draw(); } });
  const compare = h('select', { id: 'compare', onchange: e => { beside = e.target.value; note(); loadOther(); } }, h('option', { value: '' }, 'no other run'));
  function note() {
    weight === 0.8 ? query.delete('smooth') : query.set('smooth', weight);
    beside ? query.set('compare', beside) : query.delete('compare');
    replace(query);
  }
  show(box, notices, tiles,
    h('div.controls', {}, h('label', { for: 'smooth' }, 'Smoothing'), slider, h('label', { for: 'compare' }, 'Compare with'), compare),
    h('div.grid.wide', {}, reward.element, evals.element), flow.element,
    h('div.grid', {}, figures.map(f => f[1].element)),
    h('div.grid', {}, ends.element, hist, stale.element), h('div.grid', {}, speed.element, wait.element, tokens.element), rest);

  async function load() {
    run = await get('/api/run?points=600', signal);
    events.dispatchEvent(new CustomEvent('loading', { detail: run.loading }));
    draw();
  }
  async function loadOther() {
    other = null;
    if (beside) {
      try { other = await get('/api/run?points=600&run=' + encodeURIComponent(beside), signal); } catch (e) { if (!signal.aborted) show(notices, h('p.notice.bad', {}, e.message)); }
    }
    if (!signal.aborted) draw();
  }

  // lines of one figure: of this run, and dashed of the other.
  function lines(stage, name, label = c => c.labels?.env ?? words(c.name), where = () => true) {
    const own = byName(run.curves, stage, name).filter(where);
    const list = [];
    for (const [i, c] of own.entries()) {
      const key = own.length > 1 || c.labels?.env ? envColour(c.labels?.env ?? label(c)) : '--c0';
      if (weight > 0 && c.x.length > 20) {
        list.push({ label: label(c), x: c.x, y: c.y, colour: key, faint: true, quiet: true });
        list.push({ label: label(c), x: c.x, y: smooth(c.y, weight), colour: key });
      } else {
        list.push({ label: label(c), x: c.x, y: c.y, low: c.low, high: c.high, colour: key, points: c.x.length < 3 });
      }
      const twin = other && byName(other.curves, stage, name).filter(where).find(o => label(o) === label(c));
      if (twin) list.push({ label: label(c) + ' · ' + beside, x: twin.x, y: smooth(twin.y, twin.x.length > 20 ? weight : 0), colour: key, dash: true });
    }
    return list;
  }
  // shadowLines are those of one figure of shadow trainers, which train on the same batches.
  function shadowLines(name) {
    return byName(run.curves, 'shadow', name).map((c, i) => ({ label: 'shadow ' + (c.labels?.shadow ?? ''), x: c.x, y: smooth(c.y, c.x.length > 20 ? weight : 0), colour: colour(i + 1), dash: true }));
  }
  function envColour(env) {
    const at = run.names.envs.indexOf(env);
    return colour(at >= 0 ? at : run.names.envs.length);
  }

  function draw() {
    if (!run) return;
    reward.set(lines('packer', 'reward'));
    evals.set(evalLines());
    for (const [name, c] of figures) c.set([...lines('trainer', name), ...shadowLines(name)]);
    speed.set(lines('trainer', 'tokens_per_second'));
    wait.set(lines('trainer', 'wait_share'));
    stale.set([...lines('packer', 'off_policy_mean', () => 'mean'), ...lines('packer', 'off_policy_max', () => 'most').map(l => ({ ...l, colour: '--warn' }))]);
    tokens.set(lines('packer', 'fate_tokens', undefined, c => c.labels?.fate === 'packed'));
    ends.set(endLines());
    drawHist();
    drawTiles();
    drawNotices();
    drawRest();
  }

  function evalLines() {
    const list = [];
    const of = (r, dash) => {
      for (const e of r.evals) {
        if (e.name.startsWith('by-hand/') || e.policy) continue;
        const key = envColour(e.env);
        const edge = side => e.avg.map((v, i) => v === null ? null : v + side * 1.96 * (e.stderr[i] ?? 0));
        list.push({ label: e.name + (dash ? ' · ' + beside : ''), x: e.version, y: e.avg, low: dash ? null : edge(-1), high: dash ? null : edge(1), colour: key, dash, points: true });
        const best = Math.max(...Object.values(e.baselines ?? {}));
        if (!dash && Number.isFinite(best) && e.version.length) {
          const end = Math.max(e.version.at(-1), run.newest?.version ?? 0);
          list.push({ label: e.name + ' without a model', x: [e.version[0], end], y: [best, best], colour: key, dash: true, faint: true, quiet: true });
        }
      }
    };
    of(run, false);
    if (other) of(other, true);
    return list;
  }

  function endLines() {
    const ways = Object.keys(run.ends.ways).sort((a, b) => (a === 'packed' ? -1 : b === 'packed' ? 1 : a.localeCompare(b)));
    return ways.map((w, i) => ({ label: words(w === 'packed' ? 'trained' : w.replace('filtered:', '')), x: run.ends.x, y: run.ends.ways[w], colour: fateColours[w.split(':')[0]] ?? colour(i) }));
  }

  function drawHist() {
    const o = run.off_policy, all = o.all.reduce((a, b) => a + b, 0), now = o.newest.reduce((a, b) => a + b, 0);
    show(hist, h('header', {}, h('h3', {}, 'How old trained rollouts are'), h('div.legend', {}, h('span.key', {}, h('i', { css: { '--key': 'var(--c0)' } }), 'all steps'), h('span.key', {}, h('i', { css: { '--key': 'var(--warn)' } }), 'step ' + run.packed_step))),
      all === 0 ? h('p.empty', {}, 'Nothing yet.') : h('div.bars', { role: 'table', 'aria-label': 'Rollouts by off-policy steps' }, o.all.map((n, i) => h('div.bar', { role: 'row' },
        h('span.bin', { role: 'cell' }, i === 16 ? '16+' : i), h('span.track', { 'aria-hidden': 'true' }, h('i', { css: { width: 100 * n / all + '%' } }), h('i.now', { css: { width: now ? 100 * o.newest[i] / now + '%' : '0' } })),
        h('span.share', { role: 'cell' }, percent(n / all))))), h('p.axis-name', {}, 'off-policy steps'));
  }

  // A tile says one thing, and how it has changed.
  function tile(label, value, detail, picture, hint) {
    return h('div.tile', { title: hint ?? null }, h('span.label', {}, label), h('span.value', {}, value), detail && h('span.detail', {}, detail), picture);
  }
  function change(now, then) {
    if (now === null || then === null || now === undefined || then === undefined) return null;
    const d = now - then;
    return h('span', { class: Math.abs(d) < 1e-9 ? '' : d > 0 ? 'up' : 'down' }, (d > 0 ? '▲ ' : d < 0 ? '▼ ' : '') + num(Math.abs(d)));
  }
  const tailMean = (y, n) => y.length ? y.slice(-n).reduce((a, b) => a + b, 0) / Math.min(n, y.length) : null;
  const headMean = (y, n) => y.length ? y.slice(0, n).reduce((a, b) => a + b, 0) / Math.min(n, y.length) : null;

  function drawTiles() {
    const version = run.newest?.step ?? 0;
    const done = run.max_steps ? Math.min(1, version / run.max_steps) : 0;
    const list = [h('div.tile.progress', {}, h('span.label', {}, run.final ? 'Ended after step' : 'Step'), h('span.value', {}, whole(version), run.max_steps ? h('small', {}, ' of ' + whole(run.max_steps)) : null),
      h('span.meter', { role: 'progressbar', 'aria-valuenow': Math.round(100 * done), 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-label': 'steps made' }, h('i', { css: { width: 100 * done + '%' } })))];
    const evals = run.evals.filter(e => !e.name.startsWith('by-hand/') && !e.policy && e.avg.length);
    const evalLine = list => list.map(e => h('span', {}, (list.length > 1 ? e.name : 'eval') + ' ', h('b', {}, num(e.avg.at(-1))), e.stderr.at(-1) ? ' ± ' + num(1.96 * e.stderr.at(-1), 2) + ' ' : ' ', e.avg.length > 1 && change(e.avg.at(-1), e.avg[0])));
    for (const c of byName(run.curves, 'packer', 'reward')) {
      const n = Math.max(1, Math.min(20, Math.floor(c.y.length / 4)));
      list.push(tile(c.labels.env, num(tailMean(c.y, n)), [h('span', {}, change(tailMean(c.y, n), headMean(c.y, n)), ' since the start'), evalLine(evals.filter(e => e.env === c.labels.env))], spark(smooth(c.y, 0.8), envColour(c.labels.env)), 'Mean reward of the newest steps'));
    }
    const trainedEnvs = new Set(byName(run.curves, 'packer', 'reward').map(c => c.labels.env));
    for (const e of evals.filter(e => !trainedEnvs.has(e.env))) {
      list.push(tile('eval ' + e.name, [num(e.avg.at(-1)), e.stderr.at(-1) ? h('small', {}, ' ± ' + num(1.96 * e.stderr.at(-1))) : null], e.avg.length > 1 ? [change(e.avg.at(-1), e.avg[0]), ' since version ' + e.version[0]] : 'version ' + e.version[0]));
    }
    const total = Object.values(run.ends.ways).flat().reduce((a, b) => a + b, 0), trained = (run.ends.ways.packed ?? []).reduce((a, b) => a + b, 0);
    list.push(tile('trained groups', total ? percent(trained / total) : '–', whole(run.counts.rollouts) + ' rollouts decided'));
    list.push(tile('tokens/s', num(latest.flow?.tokens_per_second ?? 0, 0), num(run.counts.tokens) + ' tokens so far', null, 'Sampled now'));
    show(tiles, list);
  }

  function drawNotices() {
    const l = run.loading;
    show(notices, run.notices.map(n => h('p.notice', { class: n.level, role: n.level === 'bad' ? 'alert' : null }, n.fault && [h('a', { href: '/runbook/' + n.fault, target: '_blank', title: 'What to look at, and what to do' }, h('b', {}, n.fault)), ' '], n.text, n.link && [' ', h('a', { href: n.link }, 'Look')])),
      l.loaded < l.files && h('p.notice.info', {}, `Reading the run’s files: ${whole(l.loaded)} of ${whole(l.files)}.`),
      l.skipped > 0 && h('p.notice.info', {}, `${whole(l.skipped)} files hold older rollouts than are kept in memory (ui.max_rollouts).`),
      run.from_run && h('p.notice.info', {}, 'It began from a version of run ', h('b', {}, run.from_run), '.'));
  }

  // The curves that no chart above has are made when they are looked at.
  function drawRest() {
    if (!rest.open) return;
    const taken = new Set(['packer/reward', 'packer/off_policy_mean', 'packer/off_policy_max', 'packer/fate_tokens', 'packer/groups', 'trainer/tokens_per_second', 'trainer/wait_share', ...learning.flatMap(l => ['trainer/' + l[0], 'shadow/' + l[0]])]);
    const keys = [...new Set(run.curves.map(c => c.stage + '/' + c.name))].filter(k => !taken.has(k)).sort();
    for (const k of keys) {
      const [stage, name] = k.split('/');
      if (!restCharts.has(k)) {
        const c = new Chart(`${stage}: ${words(name)}`, { x: 'step', height: 150, pick: s => go('/step/' + s), format: name.endsWith('bytes') ? bytes : num });
        restCharts.set(k, c);
        more.append(c.element);
      }
      restCharts.get(k).set(lines(stage, name, c => Object.values(c.labels ?? {}).join(' ') || words(c.name)));
    }
  }
  rest.addEventListener('toggle', drawRest);

  listen('flow', f => { flow.set(f); }, signal);
  let busy = false, again = false, soon = 0;
  listen('change', () => { clearTimeout(soon); soon = setTimeout(refresh, 300); }, signal);
  signal.addEventListener('abort', () => clearTimeout(soon));
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try { await load(); } catch { /* the stream says when the server is away */ }
    if (signal.aborted) return;
    setTimeout(() => { busy = false; if (again && !signal.aborted) { again = false; refresh(); } }, 1500);
  }

  const [, runs, first] = await Promise.all([load(), get('/api/runs', signal), get('/api/flow', signal)]);
  if (signal.aborted) return;
  flow.set(first);
  for (const r of runs.runs) if (r !== runs.run) compare.append(h('option', { value: r, selected: r === beside }, r));
  if (beside) await loadOther();
}
