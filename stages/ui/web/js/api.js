// What the server answers, and what it tells by itself.

export async function get(path, signal) {
  const r = await fetch(path, { signal, headers: { accept: 'application/json' } });
  return answer(r);
}

export async function post(path, body) {
  return answer(await fetch(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }));
}

async function answer(r) {
  const body = await r.json();
  if (!r.ok) throw new Error(body.error ?? r.statusText);
  return body;
}

// events is one stream for the whole page: views listen on it for 'flow' and 'change', and 'state' says how the stream is.
export const events = new EventTarget();
export const latest = {};

export function connect() {
  const source = new EventSource('/api/events');
  for (const kind of ['flow', 'change']) {
    source.addEventListener(kind, e => {
      latest[kind] = JSON.parse(e.data);
      events.dispatchEvent(new CustomEvent(kind, { detail: latest[kind] }));
    });
  }
  // A page that the browser keeps for its back button would keep its connection, of which there are few.
  addEventListener('pagehide', () => source.close(), { once: true });
  source.onopen = () => events.dispatchEvent(new CustomEvent('state', { detail: true }));
  source.onerror = () => {
    events.dispatchEvent(new CustomEvent('state', { detail: false }));
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  };
}

addEventListener('pageshow', e => { if (e.persisted) connect(); });

// A view's life: what it listens to ends with it.
export function listen(kind, what, signal) {
  events.addEventListener(kind, e => what(e.detail), { signal });
}
