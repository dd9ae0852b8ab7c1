// Several runs: how their configurations differ, and all their curves drawn over one another.

import { link, shownRuns } from "./address.js";
import { flat } from "./configuration_tab.js";
import { curves } from "./curves.js";
import { card, h } from "./dom.js";
import { getJson, ofRun } from "./store.js";

export function comparePage(store) {
  const names = () => shownRuns(store.runs);
  const charts = curves(store, names),
    legend = h("div", { class: "legend" });
  const table = h("div", { class: "table-scroll plain" }),
    differences = card("Differences", table);
  const few = h(
    "p",
    { class: "empty", hidden: true },
    "Nothing is drawn: choose runs on ",
    h("a", { href: link(""), text: "the page of all runs" }),
    ".",
  );
  const element = h(
    "div",
    { class: "panel" },
    h("div", { class: "title" }, h("h1", { text: "Compare" }), legend),
    few,
    differences,
    charts.element,
  );
  const configurations = new Map();
  let written = "";

  async function load(shown) {
    await Promise.all(
      shown
        .filter((name) => !configurations.has(name))
        .map(async (name) => {
          configurations.set(name, {});
          try {
            const { experiment, env_spec: spec } = await getJson(ofRun("api/details", name));
            configurations.set(name, Object.fromEntries([...flat(experiment), ["environment", spec.env_id ?? "–"]]));
          } catch {
            /* gone: its column stays empty */
          }
        }),
    );
    showDifferences(shown);
  }

  function showDifferences(shown) {
    const keys = [...new Set(shown.flatMap((name) => Object.keys(configurations.get(name) ?? {})))];
    const values = (key) => shown.map((name) => configurations.get(name)?.[key] ?? "–");
    const differing = keys.filter(
      (key) => !["run.name", "run.directory"].includes(key) && new Set(values(key)).size > 1,
    );
    const text = JSON.stringify([shown, differing.map(values)]);
    if (text === written) return;
    written = text;
    if (shown.length < 2 || !differing.length) {
      table.replaceChildren(
        h("p", {
          class: "empty",
          text:
            shown.length < 2
              ? "Two runs or more can differ."
              : `These ${shown.length} runs have the same configuration.`,
        }),
      );
      return;
    }
    table.replaceChildren(
      h(
        "table",
        { class: "list differences" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col", text: "Setting" }),
            ...shown.map((name) => h("th", { scope: "col" }, swatch(store, name), name)),
          ),
        ),
        h(
          "tbody",
          {},
          ...differing.map((key) =>
            h("tr", {}, h("th", { scope: "row", text: key }), ...values(key).map((value) => h("td", { text: value }))),
          ),
        ),
      ),
    );
  }

  function update() {
    const shown = names();
    legend.replaceChildren(
      ...shown.map((name) => h("span", {}, swatch(store, name), h("a", { href: link("run", name), text: name }))),
    );
    few.hidden = shown.length > 0;
    differences.hidden = shown.length === 0;
    charts.element.hidden = shown.length === 0;
    load(shown);
    charts.update();
  }

  return { title: "Compare", element, update, close: charts.close, watched: names };
}

function swatch(store, name) {
  return h("i", { class: "swatch", "--swatch": store.color(name) });
}
