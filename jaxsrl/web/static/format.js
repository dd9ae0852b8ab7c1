// Numbers, times and sizes for people.

const SUFFIXES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

// 1,234,567 -> "1.23M"; whole numbers below 10,000 as they are.
export function compact(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size < 10000) return trim(Number(value.toPrecision(Math.max(digits, 4))));
  const [unit, suffix] = SUFFIXES.find(([unit]) => size >= unit);
  return trim(Number((value / unit).toPrecision(digits))) + suffix;
}

function trim(value) {
  return value.toString().replace("-", "−");
}

// A measured value: four digits that mean something, with an exponent where nothing else is readable.
export function measured(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(2).replaceAll("-", "−");
  return size >= 1e5 ? compact(value, 4) : trim(Number(value.toPrecision(4)));
}

export function whole(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${seconds < 10 && seconds % 1 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return seconds < 600 ? `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${pad(minutes % 60)} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function pad(number) {
  return String(Math.floor(number)).padStart(2, "0");
}

export function ago(secondsSince1970) {
  if (!secondsSince1970) return "–";
  const seconds = Math.max(0, Date.now() / 1000 - secondsSince1970);
  if (seconds < 5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

export function when(secondsSince1970) {
  return secondsSince1970
    ? new Date(secondsSince1970 * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })
    : "–";
}

export function bytes(number) {
  let amount = number,
    unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (amount < 1024) break;
    amount /= 1024;
    unit = larger;
  }
  return unit === "B" ? `${number} B` : `${Number(amount.toPrecision(3))} ${unit}`;
}

// About `count` round numbers inside [low, high].
export function ticks(low, high, count) {
  const step = roundStep((high - low) / Math.max(1, count));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const lead = rough / power;
  return (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 2.5 ? 2.5 : lead <= 5 ? 5 : 10) * power;
}

const TIME_STEPS = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
];

export function timeTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const step = TIME_STEPS.find((step) => step >= rough) ?? Math.ceil(rough / 86400) * 86400;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

export function clock(seconds, span) {
  if (seconds === 0) return "0";
  if (span <= 180) return `${Number(seconds.toFixed(1))} s`;
  if (span <= 10800) return `${Number((seconds / 60).toFixed(1))} min`;
  return `${Number((seconds / 3600).toFixed(1))} h`;
}
