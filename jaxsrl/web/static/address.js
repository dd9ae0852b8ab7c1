// What is shown, kept in the address after "#": page and run as a path, choices as a query. So reloading and "back" work.

const DEFAULTS = { x: "steps", smooth: "0", from: "", to: "", shown: "", find: "", also: "" };

export function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", name = "", tab = ""] = path.split("/").map(decodeURIComponent);
  return { page, name, tab, ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(query)) };
}

export function link(page, name = "", tab = "", choices = read()) {
  const path = [page, name, tab].filter(Boolean).map(encodeURIComponent).join("/");
  const kept = Object.entries(choices).filter(
    ([key, value]) => key in DEFAULTS && value !== DEFAULTS[key] && value !== "",
  );
  const query = new URLSearchParams(kept).toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

// Changes choices without a new entry in the history and without a new page.
export function choose(changes) {
  const now = { ...read(), ...changes };
  history.replaceState(null, "", link(now.page, now.name, now.tab, now));
}

const NOBODY = "none";

// Names of the runs whose curves are drawn: those chosen, or at first the eight that changed last.
export function shownRuns(runs) {
  const { shown } = read();
  if (shown === NOBODY) return [];
  if (shown) {
    const names = new Set(shown.split("|"));
    return runs.filter((run) => names.has(run.name)).map((run) => run.name);
  }
  const newest = [...runs].sort((a, b) => (b.changed ?? 0) - (a.changed ?? 0)).slice(0, 8);
  return runs.filter((run) => newest.includes(run)).map((run) => run.name);
}

export function show(names) {
  choose({ shown: names.length ? names.join("|") : NOBODY });
}
