// The SQL view: the questions that lie in deploy/duckdb, and a box for others where the binary has DuckDB.

import { h, show, visible } from './dom.js';
import { get, post } from './api.js';
import { whole } from './format.js';

export async function sqlView(box, { signal, query, replace }) {
  const a = await get('/api/sql', signal);
  const text = h('textarea', { id: 'query', rows: 12, spellcheck: 'false', 'aria-label': 'Query', onkeydown: e => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) { e.preventDefault(); run(); } } });
  const about = h('p.about'), result = h('div.result', { 'aria-live': 'polite' });
  const list = h('ul.questions', {}, a.questions.map(q => h('li', {}, h('button', { type: 'button', 'data-name': q.name, onclick: () => choose(q) }, q.title))));
  const button = h('button.primary', { type: 'button', onclick: run, disabled: !a.engine, title: 'Ctrl Enter' }, 'Ask');
  const copy = h('button.quiet', { type: 'button', onclick: () => navigator.clipboard?.writeText(a.command) }, 'Copy');
  show(box, h('div.sql', {}, h('aside', {}, h('h3', {}, 'Questions'), list), h('div', {}, about, text,
    h('div.controls', {}, button, a.engine ? h('small', {}, 'over the run’s Parquet files, up to a minute behind; read-only, 30 s, 1,000 rows') : h('small', {}, 'This binary has no DuckDB (it is optional: ', h('code', {}, 'go build -tags duckdb ./cmd/prl-stage'), ').')),
    h('p.command', {}, 'In a terminal: ', h('code', {}, a.command), ' ', copy), result)));
  function choose(q) {
    for (const b of list.querySelectorAll('button')) b.setAttribute('aria-current', String(b.dataset.name === q.name));
    text.value = q.sql;
    show(about, h('b', {}, q.title), ' ', q.about);
    show(result);
    if (q.name === '') return;
    query.delete('q');
    query.set('question', q.name);
    replace(query);
  }
  async function run() {
    if (!a.engine) return;
    button.disabled = true;
    const chosen = a.questions.find(q => q.name === query.get('question'));
    if (!chosen || chosen.sql !== text.value) { query.delete('question'); query.set('q', text.value); replace(query); }
    show(result, h('p.empty', {}, '…'));
    try {
      const t = await post('/api/sql', { query: text.value });
      const numeric = t.types.map(x => /INT|DOUBLE|FLOAT|DECIMAL/.test(x));
      const cell = (v, isNull, i) => h('td', { class: numeric[i] ? 'n' : '', dir: 'auto' }, isNull ? h('span.null', {}, 'null') : visible(clip(v)));
      const head = h('tr', {}, t.columns.map((c, i) => h('th', { scope: 'col', title: t.types[i], class: numeric[i] ? 'n' : '' }, visible(c))));
      const rows = t.rows.map((r, k) => h('tr', {}, r.map((v, i) => cell(v, t.null[k][i], i))));
      show(result, h('p.summary', {}, `${whole(rows.length)} row${rows.length === 1 ? '' : 's'}${t.more ? ', and more' : ''} in ${t.seconds.toFixed(2)} s`),
        h('div.table-box', {}, h('table.list.plain', {}, h('thead', {}, head), h('tbody', {}, rows))));
    } catch (e) {
      if (!signal.aborted) show(result, h('p.problem', { role: 'alert' }, e.message));
    }
    button.disabled = false;
  }
  choose(a.questions.find(q => q.name === query.get('question')) ?? (query.get('q') ? { name: '', title: '', about: '', sql: query.get('q') } : a.questions.find(q => q.name === 'reward_by_step') ?? a.questions[0]));
}

function clip(v) { return v.length > 500 ? v.slice(0, 500) + '…' : v; }
