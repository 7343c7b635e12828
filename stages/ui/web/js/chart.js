// Charts: uPlot with the page's colours, a legend that tells the values under the cursor, bands, and updates in place.

import uPlot from '../vendor/uPlot.js';
import { h, show } from './dom.js';
import { num, tick } from './format.js';

export const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colour = i => `--c${i % 8}`;

const sync = uPlot.sync('steps');

// smooth is an exponential moving average that is not drawn to 0 at its beginning.
export function smooth(y, weight) {
  if (!weight) return y;
  let sum = 0, norm = 0;
  return y.map(v => {
    if (v === null || v === undefined) return null;
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

// A chart of lines: lines are {label, x, y, low, high, colour (name of a CSS variable), dash, faint, points}.
export class Chart {
  constructor(title, { about = '', x = 'step', format = num, stacked = false, height = 190, pick = null, min = null, max = null } = {}) {
    Object.assign(this, { x, format, stacked, height, pick, min, max, plot: null, lines: [] });
    this.legend = h('div.legend');
    this.body = h('div.plot');
    this.note = h('p.empty', {}, 'Nothing yet.');
    this.element = h('section.card.chart', { title: about || null }, h('header', {}, h('h3', {}, title), this.legend), this.body);
    this.resize = new ResizeObserver(() => this.plot?.setSize({ width: this.body.clientWidth || 300, height: this.height }));
    this.resize.observe(this.body);
  }

  end() { this.resize.disconnect(); this.plot?.destroy(); this.plot = null; }

  // set draws lines; the plot stays as it is if they are the same ones.
  set(lines) {
    lines = lines.filter(l => l.x.length);
    const shape = JSON.stringify(lines.map(l => [l.label, l.colour, l.dash, l.faint, l.points, !!l.low]));
    this.lines = lines;
    if (!lines.length) {
      this.plot?.destroy();
      this.plot = null;
      show(this.body, this.note);
      show(this.legend);
      return;
    }
    const data = this.data(lines);
    if (this.plot && shape === this.shape) {
      this.plot.setData(data, !this.zoomed());
    } else {
      this.plot?.destroy();
      show(this.body);
      this.shape = shape;
      this.plot = new uPlot(this.options(lines), data, this.body);
    }
    this.tell(null);
  }

  zoomed() {
    const s = this.plot.scales.x, d = this.plot.data[0];
    return s.min > d[0] || s.max < d[d.length - 1];
  }

  data(lines) {
    const tables = lines.map(l => {
      const t = [l.x, l.y];
      if (l.low) t.push(l.low, l.high);
      return t;
    });
    const all = uPlot.join(tables);
    if (!this.stacked) return all;
    for (let i = 2; i < all.length; i++) all[i] = all[i].map((v, k) => (v ?? 0) + (all[i - 1][k] ?? 0));
    return all;
  }

  options(lines) {
    const series = [{}], bands = [];
    const order = [];
    for (const l of lines) {
      const stroke = () => css(l.colour) || '#888';
      const at = series.length;
      series.push({
        label: l.label, stroke, width: l.faint ? 1 : 1.6, dash: l.dash ? [5, 4] : undefined, spanGaps: true, alpha: l.faint ? 0.45 : 1,
        points: { show: !!l.points, size: 5, fill: stroke },
        fill: this.stacked ? () => css(l.colour) + 'd0' : undefined,
      });
      order.push(at);
      if (l.low) {
        series.push({ stroke: 'transparent', width: 0, points: { show: false }, spanGaps: true }, { stroke: 'transparent', width: 0, points: { show: false }, spanGaps: true });
        bands.push({ series: [at + 2, at + 1], fill: () => css(l.colour) + '26' });
      }
    }
    this.order = order;
    if (this.stacked) for (let i = series.length - 1; i > 1; i--) bands.push({ series: [i, i - 1] });
    const axis = { stroke: () => css('--muted'), grid: { stroke: () => css('--grid'), width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
    const chart = this;
    return {
      width: this.body.clientWidth || 300, height: this.height, padding: [8, 8, 0, 0], legend: { show: false },
      scales: { x: { time: false }, y: { range: (u, low, high) => chart.range(low, high) } },
      axes: [
        { ...axis, size: 20, gap: 3, values: (u, vs) => vs.map(v => Number.isInteger(v) ? num(v) : '') },
        { ...axis, size: 46, gap: 4, space: 34, values: (u, vs) => vs.map(v => chart.format === num ? tick(v) : chart.format(v)) },
      ],
      cursor: { sync: { key: sync.key, setSeries: false }, y: false, points: { size: 6 }, drag: { x: true, y: false } },
      series, bands,
      hooks: {
        setCursor: [u => chart.tell(u.cursor.idx)],
        ready: [u => u.over.addEventListener('click', () => {
          if (chart.pick && u.cursor.idx !== null && u.select.width < 2) chart.pick(u.data[0][u.cursor.idx]);
        })],
      },
    };
  }

  range(low, high) {
    if (low === null || high === null) return [0, 1];
    if (this.min !== null) low = Math.min(low, this.min);
    if (this.max !== null) high = Math.max(high, this.max);
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.min !== null && low >= this.min ? low : low - pad, this.max !== null && high <= this.max ? high : high + pad];
  }

  // tell writes the values under the cursor, or the last ones.
  tell(at) {
    if (!this.plot) return;
    const items = this.lines.map((l, i) => {
      const column = this.order[i];
      const ys = this.plot.data[column];
      let value = null;
      for (let k = at ?? ys.length - 1; k >= 0; k--) {
        if (ys[k] !== null && ys[k] !== undefined) { value = ys[k]; if (this.stacked && column > 1) value -= this.plot.data[column - 1][k] ?? 0; break; }
        if (at !== null && at - k > 50) break;
      }
      if (l.quiet) return null;
      return h('span.key', {}, h('i', { class: l.dash ? 'dashed' : '', css: { '--key': `var(${l.colour})` } }), l.label, ' ', h('b', {}, this.format(value)));
    });
    const where = at === null || at === undefined ? null : h('span.at', {}, this.x + ' ' + num(this.plot.data[0][at]));
    show(this.legend, where, items);
  }
}

addEventListener('theme', () => { for (const p of sync.plots) p.redraw(false, true); });

// spark is a curve as small as a word.
export function spark(y, name, width = 58, height = 22) {
  if (y.length < 2) return null;
  const low = Math.min(...y), high = Math.max(...y), span = high - low || 1;
  const step = Math.max(1, Math.floor(y.length / width));
  const points = [];
  for (let i = 0; i < y.length; i += step) {
    const part = y.slice(i, i + step);
    points.push(part.reduce((a, b) => a + b, 0) / part.length);
  }
  const d = points.map((v, i) => `${i ? 'L' : 'M'}${(i / (points.length - 1 || 1) * (width - 2) + 1).toFixed(1)} ${(height - 2 - (v - low) / span * (height - 4)).toFixed(1)}`).join('');
  return h('svg.spark', { viewBox: `0 0 ${width} ${height}`, width, height, 'aria-hidden': 'true' }, h('path', { d, class: 'spark-line', css: { stroke: `var(${name})` } }));
}
