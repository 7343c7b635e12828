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

const kinds = ['flow', 'change'];
const retryMs = 3000, pollMs = 2000, silentMs = 10000;

function tell(kind, detail) {
  if (kinds.includes(kind)) latest[kind] = detail;
  events.dispatchEvent(new CustomEvent(kind, { detail }));
}

// A browser keeps few connections to a server, and a stream takes one for good: of all tabs one has the stream, as long as it
// holds a lock, and tells the others. Where a browser has no locks (a page of another machine without TLS) each tab has its own.
export function connect() {
  if (!globalThis.BroadcastChannel || !navigator.locks) return stream(tell);
  const channel = new BroadcastChannel('prl-events');
  let leads = false, heard = Date.now();
  channel.onmessage = ({ data: { kind, detail } }) => {
    if (leads) {
      if (kind === 'hello') for (const [k, d] of Object.entries(told)) channel.postMessage({ kind: k, detail: d });
      return;
    }
    heard = Date.now();
    if (kind !== 'hello') tell(kind, detail);
  };
  channel.postMessage({ kind: 'hello' });
  const told = {};
  const stop = new AbortController();
  navigator.locks.request('prl-events', { signal: stop.signal }, () => new Promise(release => {
    leads = true;
    const end = stream((kind, detail) => {
      told[kind] = detail;
      tell(kind, detail);
      channel.postMessage({ kind, detail });
    });
    stop.signal.addEventListener('abort', () => { end(); release(); });
  })).catch(() => {}); // given up while it waited for its turn
  const watch = setInterval(() => { if (!leads && Date.now() - heard > silentMs) tell('state', false); }, silentMs / 2);
  const end = () => { stop.abort(); clearInterval(watch); channel.close(); };
  addEventListener('pagehide', end, { once: true });
  return end;
}

// stream reads the events of the server and gives them to what. Where it is refused, since too many read, it asks now and then.
function stream(what) {
  let source, timer, ended = false;
  const open = () => {
    source = new EventSource('/api/events');
    for (const kind of kinds) source.addEventListener(kind, e => what(kind, JSON.parse(e.data)));
    source.onopen = () => what('state', true);
    source.onerror = () => {
      what('state', false);
      if (source.readyState === EventSource.CLOSED && !ended) poll(Date.now() + 10 * retryMs);
    };
  };
  const poll = async until => {
    let wait = retryMs;
    try {
      const now = await get('/api/now');
      if (ended) return;
      what('state', true);
      for (const kind of kinds) what(kind, now[kind]);
      wait = pollMs;
    } catch {
      if (ended) return;
      what('state', false);
    }
    timer = setTimeout(Date.now() > until ? open : () => poll(until), wait);
  };
  open();
  // A page that the browser keeps for its back button would keep its connection.
  const end = () => { ended = true; clearTimeout(timer); source.close(); };
  addEventListener('pagehide', end, { once: true });
  return end;
}

addEventListener('pageshow', e => { if (e.persisted) connect(); });

// A view's life: what it listens to ends with it.
export function listen(kind, what, signal) {
  events.addEventListener(kind, e => what(e.detail), { signal });
}
