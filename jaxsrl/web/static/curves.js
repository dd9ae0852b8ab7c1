// Charts of metrics over a common x, with the choices above them.

import { choose, read } from "./address.js";
import { Chart } from "./chart.js";
import { h, say, segmented } from "./dom.js";
import { measured } from "./format.js";
import { columnsWith, describeMetric, EVALUATED, grouped, RETURN } from "./metrics.js";
import { axesOf, points, stepUnit } from "./scales.js";

const NO_RECORDS = "No records yet: the first one follows the first update.";

// x, smoothing, zoom (and, with `find`, a filter of metrics); `changed` is called after a choice, `update` with the runs.
export function controls(changed, { find = false } = {}) {
  const now = read();
  const weight = h("output", { text: now.smooth === "0" ? "off" : now.smooth });
  const slider = h("input", {
    type: "range",
    min: "0",
    max: "0.98",
    step: "0.02",
    value: now.smooth,
    "aria-label": "Smoothing",
    oninput: () => {
      say(weight, slider.value === "0" ? "off" : slider.value);
      choose({ smooth: slider.value });
      changed();
    },
  });
  const labels = Object.fromEntries(Object.entries(axesOf([])).map(([key, { label }]) => [key, label]));
  const axis = segmented("Horizontal axis", labels, now.x, (x) => {
    choose({ x, from: "", to: "" });
    changed();
  });
  const whole = h("button", {
    class: "button",
    type: "button",
    text: "Show all",
    onclick: () => {
      choose({ from: "", to: "" });
      changed();
    },
  });
  const search =
    find &&
    h("input", {
      type: "search",
      placeholder: "Find metrics",
      "aria-label": "Find metrics",
      value: now.find,
      oninput: () => {
        choose({ find: search.value });
        changed();
      },
    });
  const element = h(
    "div",
    { class: "controls" },
    axis,
    h("label", {}, "Smoothing", slider, weight),
    search,
    whole,
  );
  return {
    element,
    update: (runs) => {
      whole.hidden = read().from === "";
      const axes = axesOf(runs);
      for (const button of axis.children) {
        const { key } = button.dataset;
        button.hidden = !axes[key];
        button.setAttribute("aria-pressed", String(key === chosenAxis(axes)));
        if (axes[key]) say(button, axes[key].label);
      }
    },
  };
}

function zoom(changed) {
  return (range) => {
    choose(range ? { from: String(range[0]), to: String(range[1]) } : { from: "", to: "" });
    changed();
  };
}

// The key of the chosen axis, or of the steps where these axes lack it.
export function chosenAxis(axes) {
  const { x } = read();
  return axes[x] ? x : "steps";
}

// What a chart of `metric` shows of these runs.
function dataOf(store, names, metric) {
  const { smooth, from, to } = read();
  const axes = axesOf(store.runsOf(names)),
    x = chosenAxis(axes),
    axis = axes[x];
  const lines = names
    .map((name) => ({
      name,
      color: store.color(name),
      dashed: store.isDashed(name),
      points: points(columnsWith(store.recordsOf(name), metric), metric, axis),
    }))
    .filter((line) => line.points.some((point) => point !== null));
  if (metric === RETURN) lines.push(...evaluated(store, names, axis));
  const only = names.length === 1 ? store.recordsOf(names[0]) : null;
  const steps = only?.columns.env_steps ?? [],
    xs = only?.columns[axis.column] ?? [];
  const resumed = (only?.resumedAt ?? [])
    .map(
      (at) =>
        xs[
          Math.max(
            0,
            steps.findLastIndex((step) => step <= at),
          )
        ],
    )
    .filter((at) => at !== undefined);
  return {
    lines,
    x,
    unit: axis.unit,
    about: describeMetric(metric, axes.steps.unit).about,
    smooth: Number(smooth) || 0,
    range: from === "" ? null : [Number(from), Number(to)],
    resumed,
  };
}

// The returns of evaluation while training: a second line of each run that has some.
function evaluated(store, names, axis) {
  return names
    .map((name) => ({
      name: `${name}, evaluated`,
      color: names.length === 1 ? store.color(name, 1) : store.color(name),
      dashed: true,
      isExtra: true,
      points: points(store.recordsOf(name).evaluations, EVALUATED, axis),
    }))
    .filter((line) => line.points.some((point) => point !== null));
}

// One large chart with its controls: of the return, for the page of all runs.
export function returnChart(store, names) {
  const update = () => {
    bar.update(store.runsOf(names()));
    chart.update(dataOf(store, names(), RETURN));
  };
  const chart = new Chart(describeMetric(RETURN), { height: 300, large: true, onzoom: zoom(() => update()) });
  const bar = controls(() => update());
  chart.element.prepend(bar.element);
  bar.element.style.marginBottom = "12px";
  return { element: chart.element, update, close: () => chart.close() };
}

// All metrics of the runs that `names()` gives, in groups that open and close.
export function curves(store, names) {
  const charts = new Map(),
    groups = new Map();
  const holder = h("div", { class: "panel" });
  const rest = h("details", { class: "group card", hidden: true });
  const nothing = h("p", { class: "empty", text: NO_RECORDS });
  const bar = controls(() => update(), { find: true });
  const element = h("div", { class: "panel" }, bar.element, nothing, holder, rest);
  let drawn = "";

  function chartOf(metric) {
    if (!charts.has(metric)) {
      const large = metric === RETURN;
      charts.set(
        metric,
        new Chart(describeMetric(metric), { height: large ? 280 : 170, large, onzoom: zoom(() => update()) }),
      );
    }
    return charts.get(metric);
  }

  function groupOf(title) {
    if (!groups.has(title)) {
      const grid = h("div", { class: "charts" }),
        count = h("span", { class: "count" });
      groups.set(title, {
        grid,
        count,
        section: h("details", { class: "group", open: true }, h("summary", {}, title, count), grid),
      });
    }
    return groups.get(title);
  }

  function arrange(found, wanted) {
    const sections = [];
    for (const [title, metrics] of found.groups) {
      const { section, grid, count } = groupOf(title);
      const kept = metrics.filter(wanted);
      if (!kept.length) continue;
      say(count, String(kept.length));
      const elements = kept.map((metric) => chartOf(metric).element);
      if (elements.length !== grid.children.length || elements.some((one, i) => one !== grid.children[i]))
        grid.replaceChildren(...elements);
      sections.push([section, kept]);
    }
    const elements = sections.map(([section]) => section);
    if (elements.length !== holder.children.length || elements.some((one, i) => one !== holder.children[i]))
      holder.replaceChildren(...elements);
    return sections.flatMap(([, kept]) => kept);
  }

  function update() {
    const shown = names(),
      runs = store.runsOf(shown),
      now = JSON.stringify([read(), stepUnit(runs), shown.map((name) => [name, store.recordsOf(name).mark])]);
    bar.update(runs);
    if (now === drawn) return; // nothing new: what is selected or dragged stays as it is
    drawn = now;
    const found = grouped(shown.map((name) => store.recordsOf(name)));
    const find = read().find.toLowerCase();
    const wanted = (name) =>
      !find || name.toLowerCase().includes(find) || describeMetric(name).title.toLowerCase().includes(find);
    const metrics = arrange(found, wanted);
    for (const metric of metrics) chartOf(metric).update(dataOf(store, shown, metric));
    const constant = found.constant.filter(([name]) => wanted(name));
    showConstant(constant);
    if (find && constant.length && !metrics.length) rest.open = true;
    say(nothing, find ? `No metric is called like "${read().find}".` : NO_RECORDS);
    nothing.hidden = metrics.length > 0 || constant.length > 0;
  }

  function showConstant(constant) {
    rest.hidden = !constant.length;
    const rows = constant.map(([name, value]) =>
      h("tr", {}, h("th", { scope: "row", class: "mono", text: name }), h("td", { text: measured(value) })),
    );
    const isOpen = rest.open;
    rest.replaceChildren(
      h("summary", {}, "Never changed", h("span", { class: "count", text: String(constant.length) })),
      h(
        "div",
        { class: "pairs" },
        ...thirds(rows).map((some) => h("table", { class: "facts" }, h("tbody", {}, ...some))),
      ),
    );
    rest.open = isOpen;
  }

  return { element, update, close: () => charts.forEach((chart) => chart.close()) };
}

function thirds(rows) {
  const size = Math.max(4, Math.ceil(rows.length / 3));
  return [0, 1, 2].map((i) => rows.slice(i * size, (i + 1) * size)).filter((some) => some.length);
}
