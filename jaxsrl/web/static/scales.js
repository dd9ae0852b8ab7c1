// The arithmetic of a chart: which points are drawn where. No elements in here.

const ENV_STEPS = "env steps",
  GRADIENT_STEPS = "gradient steps";

// What the steps of these runs are: "env steps", "gradient steps" where all learn from datasets, or "steps" where some do.
export function stepUnit(runs) {
  const units = new Set(runs.map((run) => run.step_unit));
  return units.size > 1 ? "steps" : ([...units][0] ?? ENV_STEPS);
}

export function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

// The horizontal axes of charts of these runs; gradient steps have no frames.
export function axesOf(runs) {
  const unit = stepUnit(runs);
  const axes = {
    steps: { column: "env_steps", label: capital(unit), unit },
    time: { column: "elapsed_seconds", label: "Time", unit: "training time" },
  };
  return unit === GRADIENT_STEPS ? axes : { ...axes, frames: { column: "frames", label: "Frames", unit: "frames" } };
}

// The points of a column: [x, y] where both are numbers; null where the curve has a gap.
export function points(records, metric, axis) {
  const xs = records.columns[axis.column] ?? [],
    ys = records.columns[metric] ?? [];
  return xs.map((x, i) => (x === null || ys[i] === null || ys[i] === undefined ? null : [x, ys[i]]));
}

// An exponential moving average whose beginning is not pulled towards zero; `weight` from 0 (as it is) to below 1.
export function smoothed(line, weight) {
  let sum = 0,
    total = 0;
  return line.map((point) => {
    if (point === null) return null;
    sum = sum * weight + point[1] * (1 - weight);
    total = total * weight + (1 - weight);
    return [point[0], sum / total];
  });
}

export function within(line, [from, to]) {
  return line.filter((point) => point !== null && point[0] >= from && point[0] <= to);
}

export function extent(lines, index) {
  let low = Infinity,
    high = -Infinity;
  for (const line of lines) {
    for (const point of line) {
      if (point === null) continue;
      low = Math.min(low, point[index]);
      high = Math.max(high, point[index]);
    }
  }
  return low <= high ? [low, high] : null;
}

// Room above and below the values; a constant gets a band around it.
export function padded([low, high]) {
  if (low === high) {
    const around = Math.abs(low) * 0.1 || 1;
    return [low - around, high + around];
  }
  const room = (high - low) * 0.06;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

// The path of a line in pixels; points that would fall on one another are left out, extremes are kept.
export function path(line, toX, toY) {
  let written = "",
    pen = "M",
    column = null,
    kept = [];
  const flush = () => {
    for (const [x, y] of kept) {
      written += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
    }
    kept = [];
  };
  for (const point of line) {
    if (point === null) {
      flush();
      pen = "M";
      column = null;
      continue;
    }
    const x = toX(point[0]),
      y = toY(point[1]),
      at = Math.floor(x);
    if (at !== column) {
      flush();
      column = at;
    }
    kept.push([x, y]);
    if (kept.length > 4) kept = withoutInner(kept);
  }
  flush();
  return written;
}

// Of several points in one column of pixels: the first, the lowest, the highest and the last.
function withoutInner(kept) {
  const first = kept[0],
    last = kept.at(-1),
    inner = kept.slice(1, -1);
  const low = inner.reduce((a, b) => (b[1] < a[1] ? b : a)),
    high = inner.reduce((a, b) => (b[1] > a[1] ? b : a));
  const ordered = low === high ? [low] : inner.indexOf(low) < inner.indexOf(high) ? [low, high] : [high, low];
  return [first, ...ordered, last];
}

// The index of the point nearest to x; -1 if there is none.
export function nearest(line, x) {
  let best = -1,
    distance = Infinity;
  line.forEach((point, i) => {
    if (point !== null && Math.abs(point[0] - x) <= distance) {
      best = i;
      distance = Math.abs(point[0] - x);
    }
  });
  return best;
}
