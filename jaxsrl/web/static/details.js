// Asking for what a run's files say beyond its records.

import { getJson, ofRun } from "./store.js";

// A function that asks the server once, and again every few seconds while the run trains; `show` gets what is new.
export function details(name, what, show) {
  let asked = 0,
    said = "";
  return async (run) => {
    if (asked && (run?.state !== "running" || Date.now() - asked < 5000)) return;
    asked = Date.now();
    try {
      const found = await getJson(ofRun(what, name));
      const text = JSON.stringify(found);
      if (text !== said) show(found);
      said = text;
    } catch (error) {
      show({ error: error.message });
    }
  };
}
