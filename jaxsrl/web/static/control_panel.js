// Buttons for a run that trains: pause, resume, save, stop, and values that may change.

import { h, say } from "./dom.js";
import { sendJson } from "./store.js";

export function controlPanel(name) {
  const said = h("p", { class: "hint", role: "status" });
  const value = h("input", { type: "number", step: "any", "aria-label": "New value" });
  const names = h("select", { "aria-label": "Value to change", onchange: () => showValue() });
  const settings = h("span", { class: "row", hidden: true }, names, value, button("Set", () => set()));
  const pause = button("Pause", () => send("pause")),
    resume = button("Resume", () => send("resume"));
  const stop = button("Stop", () => confirm(true));
  const question = h(
    "span",
    { class: "row", hidden: true },
    "Stop the run? It saves a checkpoint, and the same command resumes it.",
    button("Stop the run", () => (confirm(false), send("stop")), "danger"),
    button("Keep training", () => confirm(false)),
  );
  const bar = h("div", { class: "row" }, pause, resume, button("Save", () => send("save")), stop, settings);
  const element = h(
    "section",
    { class: "card control", "aria-label": "Control", hidden: true },
    bar,
    question,
    said,
  );
  let values = {},
    isAsked = false;

  value.addEventListener("keydown", (event) => event.key === "Enter" && set());

  function confirm(asks) {
    question.hidden = !asks;
    stop.setAttribute("aria-expanded", String(asks));
    (asks ? question.querySelector("button") : stop).focus();
  }

  function showValue() {
    value.value = values[names.value] ?? "";
  }

  function set() {
    if (Number.isFinite(value.valueAsNumber)) send("set", names.value, value.valueAsNumber);
    else say(said, "Expected a number.");
  }

  async function send(action, changed = "", to = 0) {
    for (const one of element.querySelectorAll("button")) one.disabled = true;
    if (action !== "status") say(said, "Waiting for the run, which answers between two updates…");
    try {
      const { text, error, status } = await sendJson("api/control", { run: name, action, name: changed, value: to });
      said.classList.toggle("rejected", Boolean(error));
      if (error || action !== "status") say(said, error ? `Rejected: ${error}` : text);
      if (status) show(status);
    } catch (error) {
      said.classList.add("rejected");
      say(said, error.message);
    }
    for (const one of element.querySelectorAll("button")) one.disabled = false;
  }

  function show(status) {
    showState(status.state);
    values = status.values;
    settings.hidden = !Object.keys(values).length;
    const chosen = names.value;
    names.replaceChildren(...Object.keys(values).map((one) => h("option", { value: one, text: one })));
    if (chosen in values) names.value = chosen;
    showValue();
  }

  function showState(state) {
    pause.hidden = state === "paused";
    resume.hidden = state !== "paused";
  }

  function update(run) {
    const accepts = Boolean(run.control);
    element.hidden = !accepts && !said.textContent;
    bar.hidden = !accepts;
    if (!accepts) question.hidden = true;
    else showState(run.control);
    if (accepts && !isAsked) send("status");
    isAsked = accepts;
  }

  return { element, update };
}

function button(text, press, kind = "") {
  return h("button", { type: "button", class: `button ${kind}`.trim(), text, onclick: press });
}
