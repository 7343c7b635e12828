// The picture of the flow, made from the table of stages: who hands what to whom, how much goes through, what waits where.

import { h, show } from './dom.js';
import { whole, perSecond, num, seconds } from './format.js';

const family = t => t.startsWith('tasks.') ? 'tasks' : t;

// layout finds each stage's place: a column by how far it is from the tasks, a second row for what stands beside the way.
function layout(stages) {
  const by = Object.fromEntries(stages.map(s => [s.name, s]));
  const reads = s => (s.reads ?? []).map(family), writes = s => (s.writes ?? []).map(family);
  const place = {};
  const first = stages.find(s => writes(s).includes('tasks'));
  if (first) place[first.name] = [0, 0];
  for (let queue = first ? [first] : []; queue.length;) {
    const s = queue.shift();
    const next = stages.filter(r => !place[r.name] && r.reads?.length && r.reads.length < 8 && reads(r).some(t => writes(s).includes(t) && !(s === first && t !== 'tasks')));
    for (const r of next) {
      const column = place[s.name][0] + 1;
      const row = Object.values(place).some(p => p[0] === column && p[1] === 0) ? 1 : 0;
      place[r.name] = [column, row];
      queue.push(r);
    }
  }
  // What serves the stages beside it stands below the one that runs rollouts; the rest at the side.
  if (by.inference && place.envserver) place.inference = [place.envserver[0], 1];
  const edges = [];
  for (const reader of stages.filter(s => place[s.name])) {
    const topics = new Set(reads(reader));
    for (const topic of topics) {
      const writers = stages.filter(w => w !== reader && place[w.name] && writes(w).includes(topic));
      if (!writers.length) continue;
      const column = place[reader.name][0];
      const ahead = writers.filter(w => place[w.name][0] < column);
      const from = (ahead.length ? ahead : writers).reduce((a, b) => place[b.name][0] > place[a.name][0] ? b : a);
      const same = edges.find(e => e.from === from.name && e.to === reader.name);
      if (same) same.topics.push(topic); else edges.push({ from: from.name, to: reader.name, topics: [topic], back: !ahead.length });
    }
  }
  if (place.inference) {
    edges.push({ from: 'inference', to: 'envserver', topics: [], tokens: true });
    edges.push({ from: 'trainer', to: 'inference', topics: ['policies'], under: true });
  }
  return { place, edges, rest: stages.filter(s => !place[s.name]) };
}

const says = {
  emitter: (s, f) => [perSecond(f.topics.tasks?.rate ?? 0) + ' tasks/s'],
  inference: (s, f) => [num(f.tokens_per_second, 0) + ' tokens/s', percentOf(f.generation_share)],
  envserver: s => [whole(Math.min(s.working, s.places ?? s.working)) + (s.places ? ' of ' + whole(s.places) : '') + ' places', s.instances > 1 ? s.instances + ' servers' : ''],
  scorer: s => [whole(s.working) + ' in open groups'],
  packer: s => [whole(s.working) + ' groups held'],
  trainer: s => [s.rate > 0 && s.rate < 1 ? seconds(1 / s.rate) + ' a step' : perSecond(s.rate) + ' steps/s'],
  eval: s => [whole(s.working) + ' in evals'],
};

function percentOf(share) { return share ? Math.round(100 * share) + ' % of rollout time' : ''; }

function waiting(s) {
  if (s.name === 'envserver' && s.places) return s.unread + Math.max(0, s.working - s.places);
  return s.unread;
}

export class FlowPicture {
  constructor() {
    this.svgBox = h('div.flow-box');
    this.why = h('p.why');
    this.rest = h('p.rest');
    this.element = h('section.card.flow', { 'aria-label': 'The flow' }, h('header', {}, h('h3', {}, 'Where the run is slow'), this.why), this.svgBox, this.rest);
    this.resize = new ResizeObserver(() => this.last && this.set(this.last));
    this.resize.observe(this.svgBox);
  }

  end() { this.resize.disconnect(); }

  set(f) {
    this.last = f;
    const upright = this.svgBox.clientWidth > 0 && this.svgBox.clientWidth < 620;
    const { place, edges, rest } = layout(f.stages);
    const slow = f.bottleneck?.stage;
    show(this.why, slow ? [h('b', {}, slow), ' holds up the others. ', f.bottleneck.why] : 'No stage holds up the others as far as can be told.');
    const W = upright ? 128 : 156, H = 62, gapX = upright ? 26 : 62, gapY = upright ? 44 : 52, top = upright ? 12 : 46, left = upright ? 38 : 12;
    const at = name => {
      const [c, r] = place[name];
      return upright ? [left + r * (W + gapX), top + c * (H + gapY)] : [left + c * (W + gapX), top + r * (H + gapY)];
    };
    const columns = Math.max(...Object.values(place).map(p => p[0])) + 1;
    const width = upright ? left + 2 * W + gapX + 22 : left + columns * (W + gapX) - gapX + 12;
    const height = upright ? top + columns * (H + gapY) - gapY + 14 : top + 2 * H + gapY + 34;
    const parts = [h('defs', {}, h('marker', { id: 'tip', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: 'userSpaceOnUse', orient: 'auto' }, h('path.tip', { d: 'M0 0 8 4 0 8z' })))];
    for (const e of edges) parts.push(this.edge(e, f, at, upright, { W, H, width, height, top, left, place }));
    for (const s of f.stages.filter(s => place[s.name])) parts.push(this.node(s, f, at(s.name), s.name === slow, W, H));
    show(this.svgBox, h('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': slow ? `${slow} is the bottleneck: ${f.bottleneck.why}` : 'The stages of the run', class: upright ? 'upright' : '' }, parts));
    show(this.rest, rest.map((s, i) => [i ? ' · ' : 'Beside the way: ', h('b', {}, s.name), ' ', s.does]));
  }

  edge(e, f, at, upright, g) {
    const [x1, y1] = at(e.from), [x2, y2] = at(e.to);
    const { W, H } = g;
    let d, label, anchor = 'middle', narrow = false;
    const rate = e.tokens ? f.tokens_per_second : e.topics.reduce((a, t) => a + (f.topics[t]?.rate ?? 0), 0);
    if (e.back) {
      if (upright) { d = `M${x1} ${y1 + H / 2}H16V${y2 + H / 2}H${x2 - 2}`; label = [12, (y1 + y2 + H) / 2, -90]; }
      else { d = `M${x1 + W / 2} ${y1}V16H${x2 + W / 2}V${y2 - 2}`; label = [(x1 + x2 + W) / 2, 11]; }
    } else if (e.under) {
      if (upright) { d = `M${x1 + W} ${y1 + H / 2}H${g.width - 12}V${y2 + H / 2}H${x2 + W + 2}`; label = [g.width - 4, (y1 + y2 + H) / 2, -90]; }
      else { d = `M${x1 + W / 2} ${y1 + H}V${g.height - 18}H${x2 + W / 2}V${y2 + H + 2}`; label = [x1 - W / 2, g.height - 24]; }
    } else if (e.tokens) {
      if (upright) { d = `M${x1} ${y1 + H / 2}H${x2 + W + 2}`; label = null; }
      else { d = `M${x1 + W / 2} ${y1}V${y2 + H + 2}`; label = [x1 + W / 2 + 8, (y1 + y2 + H) / 2 + 4]; anchor = 'start'; }
    } else if (x1 !== x2 && y1 !== y2) {
      if (upright) { d = `M${x1 + W} ${y1 + H / 2 + 12}h${10}V${y2 + H / 2 - 26}H${x2 + W / 2}V${y2 - 2}`; label = [x1 + W + 14, y2 - 14]; anchor = 'start'; d = `M${x1 + W} ${y1 + H - 10}H${x2 - 6}V${y2 - 14}H${x2 + W / 2}V${y2 - 2}`; label = [x2 + W / 2 - 22, y2 - 20]; anchor = 'start'; narrow = true; }
      else { d = `M${x1 + W} ${y1 + H - 12}H${x2 - 30}V${y2 + H / 2}H${x2 - 2}`; label = [x2 - 26, y2 - 9]; anchor = 'start'; }
    } else if (upright) { d = `M${x1 + W / 2} ${y1 + H}V${y2 - 2}`; label = [x1 + W / 2 + 8, (y1 + H + y2) / 2 + 4]; anchor = 'start'; }
    else { d = `M${x1 + W} ${y1 + H / 2}H${x2 - 2}`; label = [(x1 + W + x2) / 2, y1 + H / 2 - 8]; }
    const busy = rate > 0 ? Math.min(5, 1.2 + Math.log10(1 + rate)) : 1;
    const name = e.tokens ? 'tokens' : e.topics.join(', ');
    return h('g.edge', { class: rate > 0 ? 'moving' : '' },
      h('path', { d, 'marker-end': 'url(#tip)', css: { 'stroke-width': busy.toFixed(1) + 'px' } }),
      h('path.run', { d }),
      label && h('text', { x: label[0], y: label[1], 'text-anchor': anchor, transform: label[2] ? `rotate(${label[2]} ${label[0]} ${label[1]})` : null },
        h('tspan', {}, name), e.tokens || narrow ? null : h('tspan.rate', upright || e.back || e.under || anchor === 'start' ? { dx: 6 } : { x: label[0], dy: 22 }, perSecond(rate) + '/s')));
  }

  node(s, f, [x, y], hot, W, H) {
    const lines = (says[s.name]?.(s, f) ?? [perSecond(s.rate) + '/s']).filter(Boolean);
    const queue = waiting(s);
    const bricks = queue > 0 ? Math.min(9, 1 + Math.floor(Math.log2(queue))) : 0;
    return h('g.node', { class: hot ? 'hot' : '', transform: `translate(${x} ${y})`, tabindex: 0 },
      h('title', {}, `${s.name} ${s.does}.\nnot read: ${whole(s.unread)} records, at work on: ${whole(s.working)}, reads ${perSecond(s.rate)}/s` + (s.quiet ? `\nlast told of itself ${seconds(s.quiet)} ago` : '')),
      h('rect.box', { width: W, height: H, rx: 9 }),
      h('text.name', { x: 12, y: 22 }, s.name),
      queue > 0 && h('text.queue', { x: W - 10, y: 22, 'text-anchor': 'end' }, whole(queue) + ' wait'),
      Array.from({ length: bricks }, (_, i) => h('rect.brick', { x: W - 10 - 7 * (i + 1), y: 28, width: 5, height: 6, rx: 1 })),
      lines.map((l, i) => h('text.fact', { x: 12, y: (lines.length > 1 ? 40 : 46) + 14 * i }, l)),
      hot && h('text.badge', { x: 12, y: -6 }, 'bottleneck'));
  }
}
