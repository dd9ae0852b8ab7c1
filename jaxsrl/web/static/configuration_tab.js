// How the run was configured, and what its environment looks like to the agent.

import { details } from "./details.js";
import { card, h } from "./dom.js";

export function configurationTab(store, name) {
  const element = h("div", { class: "panel" });
  let found = null,
    find = "";
  const search = h("input", {
    type: "search",
    placeholder: "Find settings",
    "aria-label": "Find settings",
    oninput: () => {
      find = search.value.toLowerCase();
      fill();
    },
  });
  const tables = h("div", { class: "masonry" });
  const ask = details(name, "api/details", (said) => {
    found = said;
    element.replaceChildren(...(said.error ? [h("p", { class: "empty", text: said.error })] : sections()));
    if (!said.error) fill();
  });

  function sections() {
    const unreadable = found.unreadable.length
      ? [h("p", { class: "notice", text: `cannot be read: ${found.unreadable.join(", ")}` })]
      : [];
    return [
      ...unreadable,
      h("div", { class: "controls" }, search),
      tables,
      environment(found.env_spec),
      h("p", { class: "hint mono", text: found.path }),
    ];
  }

  function fill() {
    const made = groups(found.experiment)
      .map(([title, rows]) => [title, rows.filter(([key]) => `${title}.${key}`.toLowerCase().includes(find))])
      .filter(([, rows]) => rows.length)
      .map(([title, rows]) => card("", facts(title, rows)));
    tables.replaceChildren(
      ...(made.length
        ? made
        : [h("p", { class: "empty", text: find ? "No setting is called so." : "This run saved no configuration." })]),
    );
  }

  return {
    element,
    update: () => {
      ask(store.run(name));
    },
  };
}

// [[group, [[key, text], ...]], ...] of a configuration: a group for each part of the experiment.
export function groups(experiment) {
  const plain = Object.entries(experiment).filter(([, value]) => !isTree(value));
  const parts = Object.entries(experiment).filter(([, value]) => isTree(value));
  return [
    ...(plain.length ? [["experiment", plain.map(([key, value]) => [key, inText(value)])]] : []),
    ...parts.flatMap(([title, tree]) => withLargeParts(title, tree)),
  ];
}

// A part of its own for each tree of several settings inside a part: "run" and "run.supervision".
function withLargeParts(title, tree) {
  const isLarge = (value) => isTree(value) && Object.keys(value).length > 2;
  const own = Object.fromEntries(Object.entries(tree).filter(([, value]) => !isLarge(value)));
  const inner = Object.entries(tree)
    .filter(([, value]) => isLarge(value))
    .map(([key, value]) => [`${title}.${key}`, flat(value)]);
  return [[title, flat(own)], ...inner];
}

export function flat(tree, above = "") {
  return Object.entries(tree).flatMap(([key, value]) =>
    isTree(value) && Object.keys(value).length ? flat(value, `${above}${key}.`) : [[above + key, inText(value)]],
  );
}

function isTree(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function inText(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "" ? '""' : value;
  if (Array.isArray(value)) return value.length ? value.map(inText).join(", ") : "none";
  return typeof value === "boolean"
    ? value
      ? "yes"
      : "no"
    : typeof value === "object"
      ? JSON.stringify(value)
      : String(value);
}

function facts(title, rows) {
  return h(
    "table",
    { class: "facts" },
    h("caption", { text: title }),
    h(
      "tbody",
      {},
      ...rows.map(([key, text]) =>
        h("tr", {}, h("th", { scope: "row", text: key.replaceAll("_", " ") }), h("td", { text })),
      ),
    ),
  );
}

function environment(spec) {
  if (!spec.env_id)
    return card("Environment", h("p", { class: "empty", text: "This run saved no description of its environment." }));
  const spaces = [...leaves("observation", spec.observation), ...leaves("action", spec.action)];
  const rest = Object.entries(spec).filter(
    ([key, value]) => !["observation", "action"].includes(key) && !(Array.isArray(value) && !value.length),
  );
  return card(
    "Environment",
    h(
      "div",
      { class: "table-scroll plain" },
      h(
        "table",
        { class: "list" },
        h(
          "thead",
          {},
          h("tr", {}, ...["Part", "Kind", "Shape", "Type", "Range"].map((text) => h("th", { scope: "col", text }))),
        ),
        h("tbody", {}, ...spaces.map((cells) => h("tr", {}, ...cells.map((text) => h("td", { text }))))),
      ),
    ),
    h(
      "table",
      { class: "facts narrow" },
      h(
        "tbody",
        {},
        ...rest.map(([key, value]) =>
          h("tr", {}, h("th", { scope: "row", text: key.replaceAll("_", " ") }), h("td", { text: inText(value) })),
        ),
      ),
    ),
  );
}

function leaves(name, leaf) {
  if (!isTree(leaf)) return [];
  if (leaf.items) {
    const items = Array.isArray(leaf.items)
      ? leaf.items.map((item, i) => [String(i), item])
      : Object.entries(leaf.items);
    return items.flatMap(([key, item]) => leaves(`${name}.${key}`, item));
  }
  const shape = leaf.shape ? `[${leaf.shape.join(", ")}]` : "[]";
  return [[name, (leaf.kind ?? "").replaceAll("_", " "), shape, leaf.dtype ?? leaf.source_dtype ?? "", range(leaf)]];
}

function range(leaf) {
  if (leaf.num_values !== undefined) {
    const counts = [...new Set([leaf.num_values].flat(9))];
    return `${counts.slice(0, 4).join(", ")}${counts.length > 4 ? ", …" : ""} values`;
  }
  const ends = (which, choose) => {
    const values = [leaf[which]]
      .flat(9)
      .map((value) => (typeof value === "string" ? (value.startsWith("-") ? -Infinity : Infinity) : value));
    return values.reduce((a, b) => choose(a, b));
  };
  if (leaf.low === undefined || leaf.high === undefined) return "";
  const word = (value) =>
    Number.isFinite(value) ? String(Number(Number(value).toPrecision(4))) : value > 0 ? "∞" : "−∞";
  return `${word(ends("low", Math.min))} to ${word(ends("high", Math.max))}`;
}
