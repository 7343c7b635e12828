// The page: which view an address means, how links move between them, light and dark.

import { h, show } from './dom.js';
import { connect, events, get } from './api.js';
import { runView } from './run.js';
import { rolloutsView } from './rollouts.js';
import { rolloutView } from './rollout.js';
import { stepView } from './step.js';
import { sqlView } from './sql.js';

const main = document.getElementById('main');
let life = null;

const views = [
  [/^\/$/, 'run', runView],
  [/^\/rollouts$/, 'rollouts', rolloutsView],
  [/^\/rollout\/([^/]+)$/, 'rollouts', rolloutView],
  [/^\/steps$/, 'step', stepView],
  [/^\/step\/(\d+)$/, 'step', stepView],
  [/^\/sql$/, 'sql', sqlView],
];

// open shows the view of the address.
async function open() {
  life?.abort();
  life = new AbortController();
  const signal = life.signal;
  for (const [pattern, name, view] of views) {
    const m = location.pathname.match(pattern);
    if (!m) continue;
    for (const a of document.querySelectorAll('nav a')) {
      if (a.dataset.view === name) a.setAttribute('aria-current', 'page'); else a.removeAttribute('aria-current');
    }
    const box = h('div.view', { class: 'view-' + name });
    show(main, box);
    try {
      await view(box, { signal, argument: m[1], query: new URLSearchParams(location.search), go, replace });
      if (!signal.aborted) document.body.dataset.ready = location.pathname;
    } catch (e) {
      if (signal.aborted) return;
      show(box, h('p.problem', { role: 'alert' }, e.message));
      document.body.dataset.ready = location.pathname;
    }
    return;
  }
  show(main, h('p.problem', {}, 'There is no such view.'));
}

export function go(path) {
  delete document.body.dataset.ready;
  history.pushState(null, '', path);
  scrollTo(0, 0);
  open();
}

// replace changes what the address says of the view that is open.
function replace(query) {
  const text = query.toString();
  history.replaceState(null, '', location.pathname + (text ? '?' + text : ''));
}

document.addEventListener('click', e => {
  const a = e.target.closest?.('a[href]');
  if (!a || e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || a.target) return;
  const url = new URL(a.href, location.href);
  if (url.origin !== location.origin || url.pathname.startsWith('/api/') || url.hash) return;
  e.preventDefault();
  go(url.pathname + url.search);
});
addEventListener('popstate', open);

// g then r, o, s, q goes to a view.
let leader = 0;
addEventListener('keydown', e => {
  if (e.target.closest?.('input, textarea, select') || e.metaKey || e.ctrlKey || e.altKey) return;
  if (e.key === 'g') { leader = Date.now(); return; }
  const to = { r: '/', o: '/rollouts', s: '/steps', q: '/sql' }[e.key];
  if (to && Date.now() - leader < 1500) { leader = 0; go(to); }
});

const theme = document.getElementById('theme');
function dress(t) {
  if (t) document.documentElement.dataset.theme = t; else delete document.documentElement.dataset.theme;
  dispatchEvent(new Event('theme'));
}
function stored() { try { return localStorage.getItem('theme'); } catch { return null; } }
dress(stored());
theme.addEventListener('click', () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  const next = dark ? 'light' : 'dark';
  try { localStorage.setItem('theme', next); } catch { /* then it lasts for this visit */ }
  dress(next);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('theme')));

const live = document.getElementById('live');
let connected = false;
events.addEventListener('state', e => { connected = e.detail; tellLive(); });
let following = null;
function tellLive() {
  live.dataset.state = !connected ? 'off' : following === false ? 'files' : 'on';
  live.textContent = !connected ? 'no connection' : following === false ? 'from files' : 'live';
}
events.addEventListener('loading', e => { following = e.detail.live; tellLive(); });

get('/api/runs').then(r => {
  document.getElementById('run-name').textContent = r.run;
  document.title = r.run + ' · prl';
}).catch(() => {});
connect();
open();
