// The end of the run's log.

import { details } from "./details.js";
import { card, h } from "./dom.js";

export function logTab(store, name) {
  const element = h("div", { class: "panel" });
  const ask = details(name, "api/details", ({ log, error }) => {
    const lines = log?.length
      ? h("pre", { class: "log", tabindex: "0", text: log.join("\n") })
      : h("p", { class: "empty", text: error ?? "The log is empty." });
    element.replaceChildren(card("Log", lines));
    lines.scrollTop = lines.scrollHeight;
  });
  return {
    element,
    update: () => {
      ask(store.run(name));
    },
  };
}
