// A population: family tree, hyper-parameters over the rounds, payoffs between policies, ratings.

import { link } from "./address.js";
import { card, h, svg } from "./dom.js";
import { measured } from "./format.js";
import { getJson } from "./store.js";

const WIDTH = 760,
  LEFT = 150,
  RIGHT = 20,
  ROW = 30;

export function populationsPage(store) {
  const list = h("ul", { class: "names" });
  const element = h(
    "div",
    { class: "panel" },
    h("div", { class: "title" }, h("h1", { text: "Populations" })),
    card("", list),
  );
  const update = () =>
    list.replaceChildren(
      ...store.populations.map((name) => h("li", {}, h("a", { href: link("population", name), text: name }))),
    );
  return { title: "Populations", element, update, close: () => {}, watched: () => [] };
}

export function populationPage(store, name) {
  const body = h("div", { class: "panel" }, h("p", { class: "empty", text: "Reading the population…" }));
  const element = h("div", { class: "panel" }, h("div", { class: "title" }, h("h1", { text: name })), body);
  let written = "";

  async function load() {
    let population;
    try {
      population = await getJson(`api/population?name=${encodeURIComponent(name)}`);
    } catch (error) {
      body.replaceChildren(h("p", { class: "empty", text: error.message }));
      return;
    }
    const text = JSON.stringify(population);
    if (text === written) return;
    written = text;
    if (population.runs.length) body.replaceChildren(...panels(population, name, store));
    else body.replaceChildren(h("p", { class: "empty", text: "No round is complete yet." }));
  }

  return { title: name, element, update: load, close: () => {}, watched: () => [] };
}

function panels(population, directory, store) {
  const { runs } = population;
  const options = Object.keys(runs[0].options).filter((key) => typeof runs[0].options[key] === "number");
  const parts = [card("Family tree", tree(population, directory, store))];
  for (const option of options) parts.push(card(option, lines(runs, option)));
  if (population.payoffs.length) parts.push(card("Payoffs", heatMap(population)));
  if (population.ratings.length) parts.push(card("Ratings", ratings(population)));
  return parts;
}

const drawing = (height, ...children) =>
  h(
    "div",
    { class: "table-scroll plain" },
    svg("svg", { class: "population", width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}`, role: "img" }, ...children),
  );
const label = (x, y, text, anchor = "start") => svg("text", { x, y, "text-anchor": anchor, text });
const scale = (low, high, from, to) => (value) => from + ((high > low ? (value - low) / (high - low) : 0.5) * (to - from));
const shade = (share) => `color-mix(in oklab, var(--idle), var(--busy) ${Math.round(100 * share)}%)`;

function tree({ runs, score }, directory, store) {
  const players = [...new Set(runs.map((run) => run.player))].sort();
  const x = scale(0, Math.max(...runs.map((run) => run.round)), LEFT + 20, WIDTH - RIGHT - 20);
  const place = new Map(runs.map((run) => [run.name, [x(run.round), ROW * (players.indexOf(run.player) + 1)]]));
  const scores = runs.map((run) => run.score).filter((value) => value !== null);
  const share = scale(Math.min(...scores), Math.max(...scores), 0, 1);
  const born = runs.filter((run) => place.has(run.parent));
  const height = ROW * (players.length + 1);
  return drawing(
    height,
    players.map((player, i) => label(0, ROW * (i + 1) + 4, player)),
    born.map((run) => {
      const [[x1, y1], [x2, y2]] = [place.get(run.parent), place.get(run.name)];
      return svg("line", { class: "descent", x1, y1, x2, y2 });
    }),
    runs.map((run) => {
      const [cx, cy] = place.get(run.name);
      const about = svg("title", { text: `${run.name}: ${score} ${measured(run.score)}` });
      const mark = svg("circle", { class: "member", cx, cy, r: 8, fill: shade(share(run.score ?? scores[0])) }, about);
      const path = store.run(`${directory}/${run.name}`) ? `${directory}/${run.name}` : run.name;
      return svg("a", { href: link("run", path), "aria-label": about.textContent }, mark);
    }),
    label(LEFT + 20, height - 2, "round 0"),
    label(WIDTH - RIGHT, height - 2, `round ${runs.at(-1).round}`, "end"),
  );
}

function lines(runs, option) {
  const height = 180,
    values = runs.map((run) => run.options[option]),
    low = Math.min(...values),
    high = Math.max(...values);
  const isLog = low > 0 && high > 20 * low,
    map = isLog ? Math.log : (value) => value;
  const x = scale(0, Math.max(...runs.map((run) => run.round)), LEFT, WIDTH - RIGHT - 10),
    y = scale(map(low), map(high), height - 24, 14);
  const byName = new Map(runs.map((run) => [run.name, run]));
  return drawing(
    height,
    label(LEFT - 14, 18, measured(high), "end"),
    label(LEFT - 14, height - 20, measured(low), "end"),
    label(LEFT, height - 2, isLog ? "round 0, logarithmic" : "round 0"),
    label(WIDTH - RIGHT, height - 2, `round ${runs.at(-1).round}`, "end"),
    runs.map((run) => {
      const parent = byName.get(run.parent) ?? run;
      const [x1, x2] = [parent, run].map((one) => x(one.round)),
        [y1, y2] = [parent, run].map((one) => y(map(one.options[option])));
      return svg("line", { class: "descent option", x1, y1, x2, y2 });
    }),
    runs.map((run) =>
      svg(
        "circle",
        { class: "member", cx: x(run.round), cy: y(map(run.options[option])), r: 4, fill: "var(--s0)" },
        svg("title", { text: `${run.name}: ${measured(run.options[option])}` }),
      ),
    ),
  );
}

function heatMap({ runs, payoffs, payoff, kind }) {
  const middle = kind === "league" ? 0.5 : 0,
    reach = Math.max(1e-9, ...payoffs.flat().map((value) => Math.abs(value - middle)));
  const size = Math.max(16, Math.min(44, (WIDTH - 200) / runs.length)),
    left = 200;
  return drawing(
    size * runs.length + 22,
    runs.map((run, i) => label(0, size * (i + 0.5) + 4, run.name)),
    payoffs.flatMap((row, i) =>
      row.map((value, j) => {
        const share = Math.abs(value - middle) / reach;
        const [x, y] = [left + size * j, size * i];
        const fill = `color-mix(in oklab, var(--surface), var(--${value < middle ? "s1" : "s0"}) ${Math.round(50 * share)}%)`;
        const about = svg("title", { text: `${runs[i].name} against ${runs[j].name}: ${payoff} ${measured(value)}` });
        const cell = svg("rect", { class: "payoff", x, y, width: size, height: size, fill }, about);
        return size < 40 ? cell : svg("g", {}, cell, label(x + size / 2, y + size / 2 + 4, value.toFixed(2), "middle"));
      }),
    ),
    label(left, size * runs.length + 18, `${payoff} of the row against the column, in the same order`),
  );
}

function ratings({ runs, ratings: means, errors }) {
  const order = runs.map((_, i) => i).sort((a, b) => means[b] - means[a]);
  const left = 200,
    x = scale(
      Math.min(...means.map((mean, i) => mean - errors[i])),
      Math.max(...means.map((mean, i) => mean + errors[i])),
      left,
      WIDTH - RIGHT - 60,
    );
  return drawing(
    ROW * order.length,
    order.flatMap((i, row) => {
      const y = ROW * (row + 0.5);
      return [
        label(0, y + 4, runs[i].name),
        svg("line", { class: "descent", x1: x(means[i] - errors[i]), x2: x(means[i] + errors[i]), y1: y, y2: y }),
        svg("circle", { class: "member rating", cx: x(means[i]), cy: y, r: 5, fill: "var(--s0)" }),
        label(WIDTH, y + 4, `${Math.round(means[i])} ± ${Math.round(errors[i])}`, "end"),
      ];
    }),
  );
}
