// One run: how it stands, and behind tabs its curves, data flow, episodes, configuration, checkpoints and log.

import { link } from "./address.js";
import { checkpointsTab } from "./checkpoints_tab.js";
import { configurationTab } from "./configuration_tab.js";
import { controlPanel } from "./control_panel.js";
import { curves } from "./curves.js";
import { dataflowTab } from "./dataflow_tab.js";
import { h, say } from "./dom.js";
import { episodesTab } from "./episodes_tab.js";
import { compact, duration, measured, percent, whole } from "./format.js";
import { logTab } from "./log_tab.js";
import { progress, progressBar, stateMark } from "./runs_page.js";

const TABS = {
  curves: ["Curves", (store, name) => curves(store, () => [name])],
  dataflow: ["Data flow", dataflowTab],
  episodes: ["Episodes", episodesTab],
  configuration: ["Configuration", configurationTab],
  checkpoints: ["Checkpoints", checkpointsTab],
  log: ["Log", logTab],
};

export function runPage(store, name, asked) {
  const tab = TABS[asked] ? asked : "curves";
  const state = h("span"),
    about = h("span", { class: "where" }),
    notice = h("p", { class: "notice", hidden: true });
  const tiles = h("dl", { class: "tiles" }),
    control = controlPanel(name);
  const content = TABS[tab][1](store, name);
  const panel = h(
    "section",
    { class: "panel", role: "tabpanel", id: "panel", "aria-label": TABS[tab][0], "data-tab": tab },
    content.element,
  );
  const element = h(
    "div",
    { class: "panel" },
    h("div", { class: "title" }, h("h1", { text: name }), state, about),
    notice,
    control.element,
    tiles,
    tabBar(name, tab),
    panel,
  );

  function update() {
    const run = store.run(name);
    if (!run) {
      element.replaceChildren(
        h(
          "p",
          { class: "empty" },
          "There is no run of this name any more. ",
          h("a", { href: link(""), text: "All runs" }),
        ),
      );
      return;
    }
    state.replaceChildren(stateMark(run));
    const seed = run.seed === null ? "" : `seed ${run.seed}`;
    say(about, [run.env, run.agent, run.plan, seed].filter(Boolean).join("  ·  "));
    control.update(run);
    fillTiles(tiles, run, store.recordsOf(name));
    const { numDamaged, problem, stride } = store.recordsOf(name);
    const told = [
      problem,
      numDamaged &&
        `${numDamaged} line${numDamaged > 1 ? "s" : ""} of metrics.jsonl could not be read (torn by a crash, say)`,
      stride > 1 && `a long run: every ${stride}th record is shown`,
    ]
      .filter(Boolean)
      .join("; ");
    say(notice, told);
    notice.hidden = !told;
    content.update();
  }

  return {
    title: name,
    element,
    update,
    close: () => content.close?.(),
    watched: () => [...new Set([name, ...(content.alsoWatched?.() ?? [])])],
  };
}

function tabBar(name, current) {
  const tabs = Object.entries(TABS).map(([key, [title]]) =>
    h("a", {
      role: "tab",
      href: link("run", name, key === "curves" ? "" : key),
      text: title,
      "aria-selected": String(key === current),
      "aria-controls": "panel",
      tabindex: key === current ? "0" : "-1",
      "data-tab": key,
    }),
  );
  const bar = h("nav", { class: "tabs", role: "tablist", "aria-label": "Parts of the run" }, ...tabs);
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const here = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    tabs[(here + step + tabs.length) % tabs.length].click();
  });
  return bar;
}

function fillTiles(tiles, run, records) {
  const share = progress(run),
    left = run.speed && run.total_steps ? (run.total_steps - run.env_steps) / run.speed : null;
  const isRunning = run.state === "running";
  const total = run.total_steps ? `of ${compact(run.total_steps)} ${run.step_unit}` : run.step_unit;
  const lag = records.last("policy/lag_mean"),
    checkpoint = records.last("checkpoint/update");
  const made = [
    tile("Evaluation return", measured(run.evaluation_return), "greedy episodes after training"),
    tile("Training return", measured(run.training_return), `last 100 of ${compact(records.last("episode/count"))} episodes`),
    tile("Progress", percent(share), total, progressBar(share)),
    tile(
      "Speed",
      compact(run.speed),
      run.step_unit === "env steps" && run.frames && run.frames !== run.env_steps
        ? `env steps a second, ${compact((run.speed * run.frames) / run.env_steps)} frames`
        : `${run.step_unit} a second`,
    ),
    tile(
      "Trained for",
      duration(run.elapsed_seconds),
      isRunning && left > 0 ? `about ${duration(left)} left` : `${whole(run.update)} updates`,
    ),
    tile("Policy lag", lag === null ? "–" : measured(lag), "updates behind, mean"),
    ...machineTile(records),
    tile("Checkpoint", checkpoint ? whole(checkpoint) : "none yet", checkpoint ? "update of the newest" : ""),
  ];
  tiles.replaceChildren(...made);
}

// CPU and memory of the run's processes; nothing for runs of before these were recorded.
function machineTile(records) {
  const sum = (quantity) =>
    Object.keys(records.columns)
      .filter((name) => name.startsWith("process/") && name.endsWith(`/${quantity}`))
      .reduce((total, name) => total + (records.last(name) ?? 0), 0);
  const bytes = sum("memory_bytes");
  return bytes ? [tile("CPU", `${sum("cpu_cores").toFixed(2)} cores`, `${compact(bytes)}B of memory`)] : [];
}

function tile(title, value, small, extra = null) {
  return h(
    "div",
    { class: "tile" },
    h("dt", { text: title }),
    h("dd", {}, value, extra, h("span", { class: "small", text: small })),
  );
}
