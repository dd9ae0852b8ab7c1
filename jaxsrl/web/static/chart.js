// A chart of lines over a common x: hover or arrow keys read values, dragging zooms, a double click or Escape shows all again.

import { h, say, svg } from "./dom.js";
import { clock, compact, duration, measured, ticks, timeTicks, whole } from "./format.js";
import { extent, nearest, padded, path, smoothed, within } from "./scales.js";

const LEFT = 52,
  RIGHT = 12,
  TOP = 8,
  BOTTOM = 24;
const seen = new WeakMap();
const observer = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) seen.get(entry.target)?.onVisible(entry.isIntersecting);
  },
  { rootMargin: "240px" },
);
const resizes = new ResizeObserver((entries) => {
  for (const entry of entries) seen.get(entry.target)?.invalidate();
});

export class Chart {
  // metric: {name, title, about}; onzoom([from, to] or null) is told what was chosen.
  constructor(metric, { height = 170, large = false, onzoom }) {
    this.metric = metric;
    this.height = height;
    this.onzoom = onzoom;
    this.data = null;
    this.isVisible = this.isDirty = false;
    this.cursor = null;
    this.drag = null;
    this.about = h("span", { class: "metric", text: metric.about });
    this.now = h("span", { class: "now" });
    this.drawing = svg("svg", { class: "chart", height, tabindex: "0", role: "img" });
    this.tooltip = h("div", { class: "tooltip", hidden: true });
    this.spoken = h("p", { class: "visually-hidden", role: "status" });
    this.element = h(
      "article",
      { class: `card chart-card${large ? " large" : ""}`, "data-metric": metric.name },
      h(
        "div",
        { class: "chart-head" },
        h("h3", { text: metric.title, title: metric.name }),
        this.about,
        this.now,
      ),
      this.drawing,
      this.tooltip,
      this.spoken,
    );
    this.listen();
    seen.set(this.element, this);
    observer.observe(this.element);
    resizes.observe(this.element);
  }

  // lines: [{name, color, dashed, isExtra, points}], the extra ones beside those of runs; x: the key of an axis, and its unit;
  // about: the unit of the metric; range: [from, to] or null; resumed: [x, ...].
  update(data) {
    this.data = data;
    say(this.about, data.about);
    this.invalidate();
  }

  close() {
    observer.unobserve(this.element);
    resizes.unobserve(this.element);
  }

  onVisible(isVisible) {
    this.isVisible = isVisible;
    if (isVisible && this.isDirty) this.draw();
  }

  invalidate() {
    this.isDirty = true;
    if (this.isVisible) this.draw();
  }

  draw() {
    const { lines, smooth, range } = this.data ?? { lines: [] };
    this.isDirty = false;
    this.width = this.drawing.clientWidth || this.element.clientWidth - 32;
    if (!this.data || this.width <= 0) return;
    this.shown = lines.map((line) => ({ ...line, smooth: smooth > 0 ? smoothed(line.points, smooth) : line.points }));
    const xs =
      range ??
      fromZero(
        extent(
          this.shown.map((line) => line.points),
          0,
        ),
      );
    const runs = this.shown.filter((line) => !line.isExtra);
    say(this.now, runs.length === 1 ? measured(this.lastOf(runs[0].points)) : "");
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    if (!xs) {
      this.domain = null;
      this.drawing.replaceChildren(
        svg("text", { x: this.width / 2, y: this.height / 2, "text-anchor": "middle" }, "no values yet"),
      );
      this.drawing.setAttribute("aria-label", `${this.metric.title}: no values yet`);
      return;
    }
    const inside = this.shown.flatMap((line) => [
      within(line.smooth, xs),
      ...(smooth > 0 ? [within(line.points, xs)] : []),
    ]);
    const ys = padded(extent(inside, 1) ?? [0, 1]);
    this.domain = { x: xs[0] === xs[1] ? [xs[0] - 1, xs[1] + 1] : xs, y: ys };
    this.describe(xs);
    this.paint(smooth);
    if (this.cursor !== null) this.read(this.cursor);
  }

  toX = (x) => LEFT + ((x - this.domain.x[0]) / (this.domain.x[1] - this.domain.x[0])) * (this.width - LEFT - RIGHT);
  toY = (y) =>
    this.height -
    BOTTOM -
    ((y - this.domain.y[0]) / (this.domain.y[1] - this.domain.y[0])) * (this.height - TOP - BOTTOM);
  fromX = (px) =>
    this.domain.x[0] + ((px - LEFT) / (this.width - LEFT - RIGHT)) * (this.domain.x[1] - this.domain.x[0]);

  paint(smooth) {
    const clip = `clip-${this.metric.name.replace(/\W/g, "-")}`;
    const plot = svg("g", { "clip-path": `url(#${clip})` });
    for (const line of smooth > 0 ? this.shown : []) {
      plot.append(svg("path", { class: "raw", stroke: line.color, d: path(line.points, this.toX, this.toY) }));
    }
    for (const at of this.data.resumed ?? []) {
      const x = this.toX(at);
      plot.append(
        svg(
          "line",
          { class: "resumed", x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM },
          svg("title", { text: "resumed here" }),
        ),
      );
    }
    for (const line of this.shown) {
      plot.append(
        svg("path", {
          class: line.dashed ? "series dashed" : "series",
          stroke: line.color,
          "data-run": line.name,
          d: path(line.smooth, this.toX, this.toY),
        }),
        ...this.lonePoint(line),
      );
    }
    this.overlay = svg("g", {});
    this.drawing.replaceChildren(
      svg(
        "defs",
        {},
        svg(
          "clipPath",
          { id: clip },
          svg("rect", {
            x: LEFT - 1,
            y: TOP - 4,
            width: Math.max(0, this.width - LEFT - RIGHT + 5),
            height: this.height - TOP - BOTTOM + 8,
          }),
        ),
      ),
      ...this.axes(),
      plot,
      this.overlay,
    );
  }

  lonePoint(line) {
    const inside = within(line.smooth, this.domain.x);
    if (inside.length !== 1) return [];
    return [
      svg("circle", { class: "dot", r: 4, fill: line.color, cx: this.toX(inside[0][0]), cy: this.toY(inside[0][1]) }),
    ];
  }

  axes() {
    const { x, y } = this.domain,
      bottom = this.height - BOTTOM,
      right = this.width - RIGHT;
    const made = [];
    for (const value of ticks(...y, this.height > 240 ? 6 : 4)) {
      const at = Math.round(this.toY(value)) + 0.5;
      made.push(
        svg("line", { class: "grid", x1: LEFT, x2: right, y1: at, y2: at }),
        svg("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, tickText(value, y)),
      );
    }
    const count = Math.max(3, Math.floor((right - LEFT) / 95));
    const isTime = this.data.x === "time",
      span = x[1] - x[0];
    for (const value of isTime ? timeTicks(...x, count) : ticks(...x, count)) {
      const at = this.toX(value),
        text = isTime ? clock(value, x[1]) : compact(value);
      const anchor = at > right - 20 ? "end" : at < LEFT + 12 && span ? "start" : "middle";
      made.push(svg("text", { x: anchor === "end" ? right + 4 : at, y: bottom + 17, "text-anchor": anchor }, text));
    }
    made.push(svg("line", { class: "axis", x1: LEFT, x2: right, y1: bottom + 0.5, y2: bottom + 0.5 }));
    return made;
  }

  describe(xs) {
    const { unit } = this.data;
    const values = this.shown.map((line) => `${line.name} ${measured(this.lastOf(line.smooth))}`).join(", ");
    this.drawing.setAttribute(
      "aria-label",
      `${this.metric.title} up to ${this.xText(xs[1])}${this.data.x === "time" ? ` of ${unit}` : ` ${unit}`}: ${values}. Arrow keys read values.`,
    );
  }

  lastOf(line) {
    for (let i = line.length - 1; i >= 0; i--) if (line[i] !== null) return line[i][1];
    return null;
  }

  xText(x) {
    return this.data.x === "time" ? duration(x) : whole(x);
  }

  // Shows what the lines are at x.
  read(x) {
    this.cursor = x;
    if (!this.domain || !this.overlay) return;
    const found = this.shown
      .map((line) => ({ line, i: nearest(line.smooth, x) }))
      .filter(({ i }) => i >= 0)
      .map(({ line, i }) => ({ line, at: line.smooth[i], raw: line.points[i]?.[1] }))
      .filter(({ at }) => at[0] >= this.domain.x[0] && at[0] <= this.domain.x[1]);
    if (!found.length) return;
    const anchor = found.reduce((a, b) => (Math.abs(b.at[0] - x) < Math.abs(a.at[0] - x) ? b : a)).at[0];
    const px = this.toX(anchor);
    this.overlay.replaceChildren(
      svg("line", { class: "cross", x1: px, x2: px, y1: TOP, y2: this.height - BOTTOM }),
      ...found.map(({ line, at }) =>
        svg("circle", { class: "dot", r: 4.5, fill: line.color, cx: this.toX(at[0]), cy: this.toY(at[1]) }),
      ),
    );
    found.sort((a, b) => b.at[1] - a.at[1]);
    const unit = this.data.x === "time" ? "" : ` ${this.data.unit}`;
    this.tooltip.replaceChildren(
      h("div", { class: "at", text: `${this.xText(anchor)}${unit}` }),
      ...found
        .slice(0, 10)
        .map(({ line, at, raw }) =>
          h(
            "div",
            { class: "value" },
            h("span", {}, h("i", { class: "swatch", "--swatch": line.color }), line.name),
            h("b", { text: valueText(at[1], raw, this.data.smooth) }),
          ),
        ),
    );
    this.tooltip.hidden = false;
    this.placeTooltip(px);
    return { anchor, found };
  }

  // Beside the crosshair, on the side that has room.
  placeTooltip(px) {
    const card = this.element.getBoundingClientRect();
    const drawing = this.drawing.getBoundingClientRect();
    const width = this.tooltip.offsetWidth;
    const left = drawing.left - card.left + px;
    const flips = left + 14 + width > this.element.clientWidth;
    this.tooltip.style.left = `${Math.max(4, flips ? left - width - 14 : left + 14)}px`;
    this.tooltip.style.top = `${drawing.top - card.top + 6}px`;
  }

  forget() {
    this.cursor = null;
    this.tooltip.hidden = true;
    this.overlay?.replaceChildren();
  }

  listen() {
    const place = (event) => event.clientX - this.drawing.getBoundingClientRect().left;
    this.drawing.addEventListener("pointermove", (event) => {
      if (!this.domain) return;
      if (this.drag !== null) this.select(place(event));
      else this.read(this.fromX(place(event)));
    });
    this.drawing.addEventListener("pointerleave", () => {
      if (this.drag === null) this.forget();
    });
    this.drawing.addEventListener("blur", () => this.forget());
    this.drawing.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0 || !this.domain) return;
      this.drag = place(event);
      this.drawing.setPointerCapture(event.pointerId);
    });
    this.drawing.addEventListener("pointerup", (event) => this.endDrag(place(event)));
    this.drawing.addEventListener("pointercancel", () => {
      this.drag = null;
      this.forget();
    });
    this.drawing.addEventListener("dblclick", () => this.onzoom(null));
    this.drawing.addEventListener("keydown", (event) => this.key(event));
  }

  select(px) {
    const [from, to] = [Math.min(this.drag, px), Math.max(this.drag, px)];
    this.tooltip.hidden = true;
    this.overlay.replaceChildren(
      svg("rect", { class: "selection", x: from, width: to - from, y: TOP, height: this.height - TOP - BOTTOM }),
    );
  }

  endDrag(px) {
    if (this.drag === null) return;
    const [from, to] = [Math.min(this.drag, px), Math.max(this.drag, px)].map((at) =>
      Math.max(LEFT, Math.min(this.width - RIGHT, at)),
    );
    this.drag = null;
    this.forget();
    if (to - from > 8) this.onzoom([this.fromX(from), this.fromX(to)]);
  }

  key(event) {
    if (!this.domain) return;
    const longest = this.shown.reduce((a, b) =>
      within(b.smooth, this.domain.x).length > within(a.smooth, this.domain.x).length ? b : a,
    );
    const stops = within(longest.smooth, this.domain.x).map((point) => point[0]);
    if (event.key === "Escape") {
      if (this.cursor === null) this.onzoom(null);
      this.forget();
      return;
    }
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key) || !stops.length) return;
    event.preventDefault();
    const step = (event.shiftKey ? 10 : 1) * (event.key === "ArrowLeft" ? -1 : 1);
    const here =
      this.cursor === null
        ? step > 0
          ? -1
          : stops.length
        : stops.reduce((a, x, i) => (Math.abs(x - this.cursor) < Math.abs(stops[a] - this.cursor) ? i : a), 0);
    const next =
      event.key === "Home"
        ? 0
        : event.key === "End"
          ? stops.length - 1
          : Math.max(0, Math.min(stops.length - 1, here + step));
    const told = this.read(stops[next]);
    if (told)
      say(
        this.spoken,
        `${this.xText(told.anchor)}: ${told.found.map(({ line, at }) => `${line.name} ${measured(at[1])}`).join(", ")}`,
      );
  }
}

// A run begins at 0, a little before its first record.
function fromZero(xs) {
  return xs && xs[0] > 0 && xs[0] < xs[1] / 2 ? [0, xs[1]] : xs;
}

function valueText(smooth, raw, weight) {
  return weight > 0 && raw !== undefined ? `${measured(smooth)} (${measured(raw)})` : measured(smooth);
}

function tickText(value, [low, high]) {
  const span = high - low;
  if (Math.max(Math.abs(low), Math.abs(high)) >= 10000)
    return compact(value, span / Math.max(Math.abs(low), Math.abs(high)) < 0.05 ? 5 : 3);
  if (span < 1e-3) return value === 0 ? "0" : measured(value);
  return compact(Number(value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(span))))));
}
