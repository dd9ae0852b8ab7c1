// The plan's drawing, each fragment colored by how busy it is now, and where its time went.

import { chosenAxis } from "./curves.js";
import { card, h, say, svg } from "./dom.js";
import { clock, compact, percent } from "./format.js";
import { axesOf } from "./scales.js";
import { getText, ofRun } from "./store.js";

const RECENT = 5,
  MOST_BARS = 72;

export function dataflowTab(store, name) {
  const drawing = h(
    "div",
    { class: "plan-scroll", tabindex: "0", role: "region", "aria-label": "Drawing of the plan" },
    h("p", { class: "empty", text: "Reading the plan…" }),
  );
  const shares = h("div", { class: "shares" }),
    policy = h("span", { class: "hint" });
  const nothing = h("p", { class: "empty", text: "No record says yet how busy the fragments are.", hidden: true });
  const scale = h("div", { class: "scale" }, "idle", h("i"), "busy all the time", h("b"), "not measured");
  const element = h(
    "div",
    { class: "panel" },
    card("", h("div", { class: "title" }, h("h2", { text: "Plan" }), policy), drawing, scale),
    card(
      "Where time goes",
      h("p", {
        class: "hint",
        text: "Share of wall time in which each fragment worked and waited for others; the rest is neither, or not measured.",
      }),
      nothing,
      shares,
    ),
  );
  let fragments = null;
  load();

  async function load() {
    try {
      const text = await getText(ofRun("api/plan.svg", name));
      const picture = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
      drawing.replaceChildren(document.importNode(picture, true));
      fragments = [...drawing.querySelectorAll(".fragment")].map((group) => ({
        group,
        name: group.dataset.fragment,
        kind: group.dataset.kind,
        busy: group.querySelector(".busy"),
      }));
      update();
    } catch (error) {
      drawing.replaceChildren(h("p", { class: "empty", text: error.message }));
    }
  }

  function update() {
    const run = store.run(name),
      records = store.recordsOf(name);
    say(policy, run?.plan ?? "");
    if (!fragments) return;
    const measured = fragments.map((fragment) => ({ ...fragment, ...columnsOf(records, fragment) }));
    for (const one of measured) color(one);
    showShares(shares, measured, records, axesOf(store.runsOf([name])));
    nothing.hidden = shares.children.length > 0;
  }

  return { element, update };
}

function columnsOf(records, { name }) {
  const find = (state) => records.columns[`utilization/${name}/${state}`] ?? null;
  return { busyShares: find("busy"), waitShares: find("wait") };
}

function recent(column) {
  const known = (column ?? []).filter((value) => value !== null).slice(-RECENT);
  return known.length ? known.reduce((a, b) => a + b) / known.length : null;
}

function color({ group, busy, busyShares, waitShares }) {
  const level = recent(busyShares),
    waits = recent(waitShares);
  group.classList.toggle("unknown", level === null);
  group.style.setProperty("--level", `${((level ?? 0) * 100).toFixed(0)}%`);
  say(busy, level !== null ? `busy ${percent(level)}` : waits !== null ? `waits ${percent(waits)}` : "");
}

function showShares(holder, measured, records, axes) {
  const x = chosenAxis(axes);
  const xs = (records.columns[axes[x].column] ?? []).map((value) => value ?? 0);
  const shown = measured.filter((one) => one.busyShares || one.waitShares);
  const rows = shown.map((one) => {
    const level = recent(one.busyShares),
      waits = recent(one.waitShares);
    const now = [level !== null && `busy ${percent(level)}`, waits !== null && `waits ${percent(waits)}`].filter(
      Boolean,
    );
    return h(
      "div",
      { class: "share" },
      h("div", { class: "who", text: one.name }),
      bars(one, xs.length),
      h("div", { class: "now" }, ...now.map((text) => h("div", { text }))),
    );
  });
  const last = xs.at(-1) ?? 0;
  const end = x === "time" ? clock(last, last) : `${compact(last)} ${axes[x].unit}`;
  const keys = h("div", { class: "legend" }, key("busy", "var(--busy)"), key("waiting", "var(--waiting)"));
  holder.replaceChildren(
    ...rows,
    ...(rows.length
      ? [
          h(
            "div",
            { class: "share" },
            h("div", { class: "axis-row" }, h("span", { text: "0" }), keys, h("span", { text: end })),
          ),
        ]
      : []),
  );
}

function key(text, color) {
  return h("span", { class: "key", "--swatch": color }, h("i"), text);
}

// Stacked bars over the records: work below, waiting on it. Long runs are averaged into as many bars as can be told apart.
function bars({ name, busyShares, waitShares }, length) {
  const size = Math.max(1, Math.ceil(length / MOST_BARS)),
    count = Math.ceil(length / size);
  const made = [];
  for (let i = 0; i < count; i++) {
    const mean = (column) => {
      const known = (column ?? []).slice(i * size, (i + 1) * size).filter((value) => value !== null);
      return known.length ? known.reduce((a, b) => a + b) / known.length : 0;
    };
    const busy = Math.min(1, mean(busyShares)),
      waits = Math.min(1 - busy, mean(waitShares));
    const place = { x: (i * 100) / count + 0.06, width: 100 / count - 0.12 };
    made.push(
      svg("rect", { ...place, class: "works", y: 100 - busy * 100, height: busy * 100, fill: "var(--busy)" }),
      svg("rect", { ...place, class: "waits", y: 100 - (busy + waits) * 100, height: waits * 100 }),
    );
  }
  const about = `${name}: busy ${percent(recent(busyShares))}, waiting ${percent(recent(waitShares))} in the newest records`;
  return svg(
    "svg",
    { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": about, "data-shares": name },
    ...made,
  );
}
