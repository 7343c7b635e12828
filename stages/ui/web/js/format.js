// Numbers as people read them.

export function num(v, digits = 3) {
  if (v === null || v === undefined || Number.isNaN(v)) return '–';
  const a = Math.abs(v);
  if (a >= 1e9) return short(v / 1e9) + 'G';
  if (a >= 1e6) return short(v / 1e6) + 'M';
  if (a >= 1e4) return short(v / 1e3) + 'k';
  if (Number.isInteger(v)) return v.toLocaleString('en');
  if (a !== 0 && a < 1e-3) return v.toExponential(1);
  if (a >= 100) return v.toFixed(0);
  return v.toFixed(a >= 10 ? Math.min(digits, 1) : digits);
}

function short(v) { return Math.abs(v) >= 100 ? v.toFixed(0) : v.toFixed(1); }

// tick is a number at an axis: as short as it can be.
export function tick(v) {
  return Math.abs(v) >= 1e4 ? num(v) : String(parseFloat(v.toPrecision(4)));
}

export const whole = v => v === null || v === undefined ? '–' : Math.round(v).toLocaleString('en');
export const percent = v => v === null || v === undefined ? '–' : (100 * v).toFixed(v > 0 && v < 0.01 ? 1 : 0) + ' %';
export const perSecond = v => v >= 100 ? whole(v) : v >= 1 ? v.toFixed(1) : v > 0 ? v.toFixed(2) : '0';

export function seconds(s) {
  if (s === null || s === undefined) return '–';
  if (s < 1) return Math.round(1000 * s) + ' ms';
  if (s < 60) return s.toFixed(1) + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + Math.round(s % 60) + ' s';
  return (s / 3600).toFixed(1) + ' h';
}

export function bytes(n) {
  if (n >= 1 << 30) return (n / (1 << 30)).toFixed(1) + ' GiB';
  if (n >= 1 << 20) return (n / (1 << 20)).toFixed(1) + ' MiB';
  return (n / 1024).toFixed(0) + ' KiB';
}

export function clock(iso) {
  const d = new Date(iso);
  const today = new Date().toDateString() === d.toDateString();
  const time = d.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });
  return today ? time : d.toLocaleDateString([], { month: 'short', day: 'numeric' }) + ' ' + time;
}

export const words = s => s.replaceAll('_', ' ');
