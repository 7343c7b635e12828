// The Rollouts view: what one looks for stands in the address; a list that the keyboard can walk.

import { h, show, visible } from './dom.js';
import { get, listen, latest, events } from './api.js';
import { num, whole, seconds, clock, words } from './format.js';
import { fateColours } from './run.js';

const filters = ['env', 'eval', 'fate', 'filter', 'step', 'group', 'task', 'reward', 'version', 'tokens', 'error', 'stop', 'truncated', 'policy', 'attempt', 'text', 'sort'];

const columns = [
  ['time', 'time'], ['', 'env'], ['', 'task'], ['', 'group'], ['reward', 'reward'], ['', 'what became of it'], ['version', 'version'], ['tokens', 'tokens'], ['seconds', 'took'], ['', 'ended'],
];

export const badge = (fate, extra) => h('span.fate', { css: { '--key': `var(${fateColours[fate || 'open'] ?? '--muted'})` } }, words(fate === 'packed' ? 'trained' : fate || 'open'), extra);

export const dot = fate => h('span.fate', { 'aria-hidden': 'true', css: { '--key': `var(${fateColours[fate || 'open'] ?? '--muted'})` } });

export async function rolloutsView(box, { signal, query, replace, go }) {
  const ask = { text: '', ...Object.fromEntries(filters.map(f => [f, query.get(f) ?? ''])) };
  const list = h('tbody'), summary = h('div.summary', { 'aria-live': 'polite' }), chips = h('div.chips'), foot = h('div.foot'), fresh = h('div.fresh');
  const heads = h('tr', {}, columns.map(([sort, title]) => h('th', { scope: 'col', 'aria-sort': null }, sort ? h('button.sort', { type: 'button', 'data-sort': sort, onclick: () => order(sort) }, title) : title)));
  const fields = {};
  const field = (name, label, input) => { fields[name] = input; input.id = 'f-' + name; return h('label.field', { for: 'f-' + name }, h('span', {}, label), input); };
  const input = (name, hint) => h('input', { type: 'text', value: ask[name], placeholder: hint, autocomplete: 'off', spellcheck: 'false', onchange: e => set(name, e.target.value.trim()) });
  const choice = (name, options) => h('select', { onchange: e => set(name, e.target.value) }, options.map(([v, t]) => h('option', { value: v, selected: ask[name] === v }, t)));

  const run = await get('/api/run?points=2', signal);
  events.dispatchEvent(new CustomEvent('loading', { detail: run.loading }));
  const names = run.names;
  const keep = (options, name) => ask[name] && !options.some(o => o[0] === ask[name]) ? [...options, [ask[name], ask[name]]] : options;
  const search = h('input.search', { type: 'search', value: ask.text, placeholder: 'Search what was said', 'aria-label': 'Search what was said', onchange: e => set('text', e.target.value.trim()) });
  const form = h('form.filters', { onsubmit: e => { e.preventDefault(); document.activeElement?.blur?.(); } }, search,
    field('env', 'Environment', choice('env', keep([['', 'any'], ...names.envs.map(n => [n, n])], 'env'))),
    field('eval', 'Of', choice('eval', keep([['', 'training'], ['any', 'training and evals'], ...(names.evals ?? []).map(n => [n, 'eval ' + n])], 'eval'))),
    field('fate', 'Became', choice('fate', keep([['', 'anything'], ...names.fates.map(n => [n, n === 'packed' ? 'trained' : words(n)])], 'fate'))),
    field('reward', 'Reward', input('reward', '0.5..1')),
    field('version', 'Version', input('version', '10..400')),
    field('tokens', 'Tokens', input('tokens', '100..')),
    field('error', 'Error', input('error', 'any, none, text')),
    field('step', 'Step', input('step', '41')),
    field('task', 'Task', input('task', '3')),
    h('button.quiet', { type: 'button', onclick: () => go('/rollouts') }, 'Clear'));
  const table = h('div.table-box', {}, h('table.list', {}, h('thead', {}, heads), list));
  show(box, form, chips, summary, fresh, table, foot);

  function set(name, value) {
    ask[name] = value;
    note();
    load();
  }
  function order(sort) {
    const now = ask.sort || '-time';
    set('sort', now === '-' + sort ? sort : '-' + sort === '-time' ? '' : '-' + sort);
  }
  function note() {
    for (const f of filters) ask[f] ? query.set(f, ask[f]) : query.delete(f);
    replace(query);
    const other = ['filter', 'group', 'stop', 'truncated', 'policy', 'attempt'].filter(f => ask[f]);
    show(chips, other.map(f => h('button.chip', { type: 'button', title: 'Remove', onclick: () => { set(f, ''); } }, `${f} ${ask[f]} ×`)));
    const now = ask.sort || '-time';
    for (const b of heads.querySelectorAll('button')) {
      const th = b.closest('th');
      if (now === '-' + b.dataset.sort) th.setAttribute('aria-sort', 'descending');
      else if (now === b.dataset.sort) th.setAttribute('aria-sort', 'ascending');
      else th.removeAttribute('aria-sort');
    }
  }
  const params = extra => {
    const p = new URLSearchParams();
    for (const f of filters) if (ask[f]) p.set(f, ask[f]);
    for (const [k, v] of Object.entries(extra ?? {})) p.set(k, v);
    return '/api/rollouts?' + p;
  };

  let asking = null, seen = 0, most = 1;
  async function load(extra, keepRows) {
    asking?.abort();
    const own = asking = new AbortController();
    signal.addEventListener('abort', () => own.abort(), { signal: own.signal });
    list.classList.add('waits');
    try {
      const r = await get(params(extra), own.signal);
      list.classList.remove('waits');
      draw(r, keepRows);
    } catch (e) {
      if (own.signal.aborted) return;
      list.classList.remove('waits');
      show(summary, h('p.problem', { role: 'alert' }, e.message));
      show(list);
      show(foot);
    }
  }

  function draw(r, keepRows) {
    seen = latest.change?.rollouts ?? r.held;
    show(fresh);
    most = Math.max(most, ...r.rows.map(x => Math.abs(x.reward ?? 0)));
    const rows = r.rows.map(row);
    if (keepRows) list.append(...rows); else show(list, rows);
    if (ask.text) {
      show(summary, h('span', {}, h('b', {}, whole(list.children.length)), ` with “`, visible(ask.text), `”, searched ${whole(r.searched)} of ${whole(r.files)} files, newest first`));
    } else if (!keepRows) {
      show(summary, h('span', {}, h('b', {}, whole(r.matches)), ` of ${whole(r.held)} rollouts`), r.mean_reward !== null && h('span', {}, 'mean reward ', h('b', {}, num(r.mean_reward))),
        Object.entries(r.fates).sort((a, b) => b[1] - a[1]).map(([f, n]) => h('button.facet', { type: 'button', 'aria-pressed': String(ask.fate === f), onclick: () => { fields.fate.value = ask.fate === f ? '' : f; set('fate', ask.fate === f ? '' : f); } }, badge(f === 'open' ? '' : f), ' ', whole(n))),
        Object.keys(r.envs).length > 1 && Object.entries(r.envs).sort((a, b) => b[1] - a[1]).map(([e, n]) => h('button.facet', { type: 'button', onclick: () => { fields.env.value = e; set('env', e); } }, e, ' ', whole(n))),
        r.dropped > 0 && h('span', {}, `${whole(r.dropped)} older ones are in the files only`));
    }
    show(foot, list.children.length === 0 && h('p.empty', {}, r.from ? 'None so far.' : 'None.'),
      (r.next || r.from) && h('button', { type: 'button', onclick: () => load(r.next ? { after: r.next } : { from: r.from }, true) }, r.from ? 'Search further back' : 'More'));
  }

  function row(r) {
    const href = '/rollout/' + r.id;
    return h('tr', { tabindex: 0, 'data-href': href, onclick: e => { if (!e.target.closest('a') && !getSelection().toString()) go(href); } },
      h('td.time', {}, h('a', { href, tabindex: -1 }, clock(r.time))),
      h('td', {}, visible(r.env), r.eval && h('small.tag', {}, 'eval ', visible(r.eval)), r.policy && h('small.tag', {}, visible(r.policy))),
      h('td.n', {}, r.task), h('td.n', {}, r.group, h('small', {}, '.' + r.rollout), r.attempt ? h('small.tag', {}, 'try ' + (r.attempt + 1)) : null),
      h('td.n', {}, r.reward === null ? '–' : rewardMark(r.reward, most)),
      h('td', {}, badge(r.fate || (r.group_fate && r.group_fate !== 'packed' ? r.group_fate : ''), r.step ? ' · ' + r.step : r.filter ? ' · ' + r.filter : null), r.error && h('small.error', { dir: 'auto' }, visible(r.error))),
      h('td.n', {}, r.version ?? '–'), h('td.n', {}, r.tokens ? whole(r.tokens) : '–'), h('td.n', {}, seconds(r.seconds)), h('td', {}, visible(words(r.stop ?? '')), r.truncated && h('small.tag', {}, 'cut')));
  }

  // Rows: j and k or the arrows walk, Enter opens, / searches.
  addEventListener('keydown', e => {
    if (e.target.closest?.('input, textarea, select') || e.metaKey || e.ctrlKey || e.altKey) return;
    const row = document.activeElement?.closest?.('tr[data-href]');
    const rows = [...list.children];
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[e.key];
    if (step && rows.length && (row || step === 1 && e.key === 'j')) {
      e.preventDefault();
      rows[Math.max(0, Math.min(rows.length - 1, row ? rows.indexOf(row) + step : 0))].focus();
    } else if (e.key === 'Enter' && row) {
      go(row.dataset.href);
    } else if (e.key === '/') {
      e.preventDefault();
      search.focus();
    }
  }, { signal });

  listen('change', c => {
    if (ask.text || ask.sort || c.rollouts <= seen) return;
    show(fresh, h('button.chip', { type: 'button', onclick: () => load() }, `${whole(c.rollouts - seen)} more since · show`));
  }, signal);

  note();
  await load();
}

// rewardMark is a reward with a bar, which a column of them makes readable; the bar is full where it is most.
export function rewardMark(v, most = 1) {
  return h('span.reward', {}, h('i', { 'aria-hidden': 'true', class: v < 0 ? 'neg' : '', css: { '--part': Math.min(1, Math.abs(v) / most) } }), num(v));
}
