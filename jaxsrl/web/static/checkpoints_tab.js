// The checkpoints of a run, and whether each is what was written.

import { details } from "./details.js";
import { card, h } from "./dom.js";
import { bytes, when, whole } from "./format.js";
import { capital, stepUnit } from "./scales.js";

export function checkpointsTab(store, name) {
  const element = h("div", { class: "panel" }, h("p", { class: "empty", text: "Checking files…" }));
  const ask = details(name, "api/checkpoints", (found) => {
    const unit = stepUnit(store.runsOf([name]));
    element.replaceChildren(
      ...(found.error ? [h("p", { class: "empty", text: found.error })] : sections(found, unit)),
    );
  });
  return {
    element,
    update: () => {
      ask(store.run(name));
    },
  };
}

function sections({ checkpoints, versions, quarantine }, unit) {
  if (!checkpoints.length && !quarantine.length)
    return [card("Checkpoints", h("p", { class: "empty", text: "None yet." }))];
  const heads = ["Update", capital(unit), "Size", "Arrays", "Written", "Health"];
  const rows = checkpoints.map((one) =>
    h(
      "tr",
      {},
      h("td", { text: whole(one.update) }),
      h("td", { text: whole(one.env_steps) }),
      h("td", { text: bytes(one.bytes) }),
      h("td", { text: whole(one.arrays) }),
      h("td", { text: when(one.changed) }),
      h(
        "td",
        {},
        h("span", { class: `health ${one.health}`, text: one.health }),
        one.why ? h("div", { class: "why", text: one.why }) : "",
      ),
    ),
  );
  const about = "Whole: every file has the sha256 that its manifest says. A run resumes from the newest that is whole.";
  return [
    card(
      "Checkpoints",
      h("p", { class: "hint", text: about }),
      h(
        "div",
        { class: "table-scroll plain" },
        h(
          "table",
          { class: "list" },
          h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col", text })))),
          h("tbody", {}, ...rows),
        ),
      ),
    ),
    quarantine.length
      ? card(
          "Quarantine",
          h("p", { class: "hint", text: `Damaged ones that a run moved out of its way: ${quarantine.join(", ")}` }),
        )
      : "",
    Object.keys(versions).length
      ? card(
          "Written by",
          h(
            "table",
            { class: "facts" },
            h(
              "tbody",
              {},
              ...Object.entries(versions).map(([key, text]) =>
                h("tr", {}, h("th", { scope: "row", text: key }), h("td", { text })),
              ),
            ),
          ),
        )
      : "",
  ];
}
