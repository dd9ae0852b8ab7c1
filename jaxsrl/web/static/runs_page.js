// All runs: their returns in one chart, and a table that is its legend.

import { link, show, shownRuns } from "./address.js";
import { returnChart } from "./curves.js";
import { card, h, say } from "./dom.js";
import { ago, compact, measured, percent } from "./format.js";
import { capital, stepUnit } from "./scales.js";

const COLUMNS = [
  { key: "name", title: "Run", of: (run) => run.name },
  { key: "state", title: "State", of: (run) => run.state },
  { key: "progress", title: "Progress", of: progress },
  {
    key: "evaluation",
    title: "Evaluation return",
    number: true,
    of: (run) => run.evaluation_return,
    text: (run) => measured(run.evaluation_return),
  },
  {
    key: "return",
    title: "Training return",
    number: true,
    wide: true,
    of: (run) => run.training_return,
    text: (run) => measured(run.training_return),
  },
  {
    key: "speed",
    title: "Steps/s",
    number: true,
    wide: true,
    of: (run) => run.speed,
    text: (run) => compact(run.speed),
  },
  {
    key: "steps",
    title: "Env steps",
    number: true,
    wide: true,
    of: (run) => run.env_steps,
    text: (run) => compact(run.env_steps),
  },
  { key: "env", title: "Environment", wide: true, of: (run) => run.env },
  { key: "agent", title: "Agent", wide: true, of: (run) => run.agent },
  { key: "changed", title: "Changed", wide: true, of: (run) => -(run.changed ?? 0), text: (run) => ago(run.changed) },
];

export function progress(run) {
  return run.num_updates ? Math.min(1, run.update / run.num_updates) : null;
}

export function progressBar(share) {
  const inner = h("span");
  inner.style.width = `${(share ?? 0) * 100}%`;
  return h(
    "span",
    { class: "bar", role: "progressbar", "aria-label": "Progress", "aria-valuenow": Math.round((share ?? 0) * 100) },
    inner,
  );
}

export function stateMark(run) {
  return h("span", { class: `state ${run.state}`, text: run.problem ? `${run.state}, unreadable` : run.state });
}

export function runsPage(store) {
  const rows = new Map();
  let order = { key: "name", direction: 1 },
    find = "";
  const chart = returnChart(store, () => shownRuns(store.runs));
  const body = h("tbody"),
    where = h("span", { class: "where" }),
    count = h("span", { class: "hint" });
  const all = h("input", {
    type: "checkbox",
    "aria-label": "Draw all runs",
    onchange: () => {
      show(all.checked ? visible().map((run) => run.name) : []);
      update();
      store.refresh();
    },
  });
  const heads = COLUMNS.map((column) =>
    h(
      "th",
      { scope: "col", class: classOf(column) },
      h("button", { type: "button", text: column.title, onclick: () => sortBy(column.key) }),
    ),
  );
  const search = h("input", {
    type: "search",
    placeholder: "Find runs",
    "aria-label": "Find runs",
    oninput: () => {
      find = search.value.toLowerCase();
      update();
    },
  });
  const compare = h("a", { class: "button", text: "Compare those drawn" });
  const table = card(
    "",
    h("div", { class: "row controls" }, count, h("span", { class: "grow" }), search, compare),
    h(
      "div",
      { class: "table-scroll" },
      h("table", { class: "runs" }, h("thead", {}, h("tr", {}, h("th", {}, all), ...heads)), body),
    ),
  );
  table.querySelector(".controls").style.marginBottom = "14px";

  function sortBy(key) {
    order = { key, direction: order.key === key ? -order.direction : 1 };
    update();
  }

  function visible() {
    const matches = (run) =>
      [run.name, run.env, run.agent, run.plan, run.state].some((text) => text.toLowerCase().includes(find));
    const column = COLUMNS.find((column) => column.key === order.key);
    return store.runs.filter(matches).sort((a, b) => order.direction * compareValues(column.of(a), column.of(b)));
  }

  function toggle(name, isShown) {
    const names = new Set(shownRuns(store.runs));
    if (isShown) names.add(name);
    else names.delete(name);
    show([...names]);
    update();
    store.refresh();
  }

  function rowOf(run) {
    if (!rows.has(run.name)) {
      const box = h("input", {
        type: "checkbox",
        "aria-label": `Draw ${run.name}`,
        "--swatch": store.color(run.name),
        onchange: () => toggle(run.name, box.checked),
      });
      const cells = COLUMNS.map((column) =>
        h("td", { class: `${classOf(column)} ${column.key === "name" ? "name" : ""}` }),
      );
      const name = h("a", { text: run.name });
      cells[0].append(name);
      rows.set(run.name, { box, name, cells, element: h("tr", { "data-run": run.name }, h("td", {}, box), ...cells) });
    }
    return rows.get(run.name);
  }

  function fillRow(run, shown) {
    const row = rowOf(run);
    row.box.checked = shown.has(run.name);
    row.name.href = link("run", run.name);
    row.cells[1].replaceChildren(stateMark(run));
    const share = progress(run);
    row.cells[2].replaceChildren(
      h("span", { class: "progress" }, progressBar(share), h("span", { text: percent(share) })),
    );
    COLUMNS.forEach((column, i) => {
      if (i > 2) say(row.cells[i], column.text ? column.text(run) : column.of(run) || "–");
    });
    return row.element;
  }

  function update() {
    const shown = new Set(shownRuns(store.runs)),
      runs = visible();
    say(where, store.root);
    say(
      count,
      `${runs.length === store.runs.length ? "" : `${runs.length} of `}${store.runs.length} run${store.runs.length === 1 ? "" : "s"}, ${shown.size} drawn`,
    );
    heads.forEach((head, i) => {
      if (COLUMNS[i].key === "steps") say(head.firstChild, capital(stepUnit(runs)));
      if (COLUMNS[i].key === order.key)
        head.setAttribute("aria-sort", order.direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    const elements = runs.map((run) => fillRow(run, shown));
    if (elements.length !== body.children.length || elements.some((one, i) => one !== body.children[i]))
      body.replaceChildren(...elements);
    all.checked = shown.size > 0;
    all.indeterminate = shown.size > 0 && shown.size < runs.length;
    compare.href = link("compare");
    compare.hidden = shown.size < 2;
    chart.update();
  }

  const element = h(
    "div",
    { class: "panel" },
    h("div", { class: "title" }, h("h1", { text: "Runs" }), where),
    chart.element,
    table,
  );
  return { title: "Runs", element, update, close: chart.close, watched: () => shownRuns(store.runs) };
}

function classOf(column) {
  return [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ");
}

function compareValues(a, b) {
  if (typeof a === "string") return a.localeCompare(b, "en", { numeric: true });
  return (b ?? -Infinity) - (a ?? -Infinity) || 0;
}
