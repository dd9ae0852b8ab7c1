// What the server told: the list of runs, and the records of those that are looked at, kept up to date by asking again.

const AT_ONCE_MS = 50,
  QUICK_MS = 2000,
  SLOW_MS = 10000,
  MOST_AT_ONCE = 16;

export const COLORS = 8;

class Records {
  constructor() {
    this.cursor = "";
    this.columns = {};
    this.evaluations = { columns: {} };
    this.resumedAt = [];
    this.stride = 1;
    this.numDamaged = 0;
    this.problem = "";
    this.version = 0;
  }

  get length() {
    return this.columns.update?.length ?? 0;
  }

  take(answer) {
    this.problem = answer.problem ?? "";
    if (this.problem) return;
    const added = answer.columns.update?.length ?? 0;
    if (answer.restart) this.columns = answer.columns;
    else if (added) this.#append(answer.columns, added);
    if (answer.restart || added) this.version += 1;
    this.cursor = answer.cursor;
    this.resumedAt = answer.resumed_at;
    this.evaluations = { columns: answer.evaluations };
    this.stride = answer.stride;
    this.numDamaged = answer.num_damaged;
  }

  #append(columns, added) {
    const before = this.length;
    for (const name of Object.keys(columns)) this.columns[name] ??= new Array(before).fill(null);
    for (const [name, column] of Object.entries(this.columns))
      column.push(...(columns[name] ?? new Array(added).fill(null)));
  }

  // What changes when there is something new to draw.
  get mark() {
    return `${this.cursor} ${this.evaluations.columns.update?.length ?? 0}`;
  }

  // The newest value that is a number, or null.
  last(name) {
    const column = this.columns[name] ?? [];
    for (let i = column.length - 1; i >= 0; i--) if (column[i] !== null) return column[i];
    return null;
  }
}

export class Store {
  constructor(onchange, onconnection) {
    this.runs = [];
    this.populations = [];
    this.root = "";
    this.unread = 0;
    this.numRuns = 0;
    this.records = new Map();
    this.watched = () => [];
    this.slots = new Map();
    this.onchange = onchange;
    this.onconnection = onconnection;
    this.timer = null;
  }

  run(name) {
    return this.runs.find((run) => run.name === name) ?? null;
  }

  runsOf(names) {
    return names.map((name) => this.run(name)).filter(Boolean);
  }

  recordsOf(name) {
    if (!this.records.has(name)) this.records.set(name, new Records());
    return this.records.get(name);
  }

  get isLive() {
    return this.runs.some((run) => run.state === "running");
  }

  // A color that a run keeps for as long as the page is open: its place among all, so that neighbours differ.
  slot(name) {
    if (!this.slots.has(name)) this.slots.set(name, this.slots.size);
    return this.slots.get(name);
  }

  color(name, shift = 0) {
    return `var(--s${(this.slot(name) + shift) % COLORS})`;
  }

  isDashed(name) {
    return Math.floor(this.slot(name) / COLORS) % 2 === 1;
  }

  async refresh() {
    clearTimeout(this.timer);
    try {
      const list = await getJson("api/runs");
      this.runs = list.runs;
      this.populations = list.populations;
      this.root = list.root;
      this.unread = list.unread;
      this.numRuns = list.num_runs;
      for (const run of this.runs) this.slot(run.name);
      const names = this.watched().filter((name) => this.run(name));
      for (let first = 0; first < names.length; first += MOST_AT_ONCE) {
        const asked = names.slice(first, first + MOST_AT_ONCE);
        const query = asked
          .map((name) => `run=${encodeURIComponent(`${name}@${this.recordsOf(name).cursor}`)}`)
          .join("&");
        for (const [name, answer] of Object.entries(await getJson(`api/records?${query}`)))
          this.recordsOf(name).take(answer);
      }
      this.onconnection(this.unread ? "reading" : this.isLive ? "live" : "");
      this.onchange();
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof AnswerError)) throw error;
      this.onconnection("lost");
    } finally {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.refreshIfSeen(), this.unread ? AT_ONCE_MS : this.isLive ? QUICK_MS : SLOW_MS);
    }
  }

  refreshIfSeen() {
    if (document.visibilityState === "visible") return this.refresh();
    document.addEventListener("visibilitychange", () => this.refresh(), { once: true });
    return null;
  }
}

class AnswerError extends Error {}

export async function getJson(address) {
  const answer = await fetch(address, { cache: "no-store" });
  if (!answer.ok) throw new AnswerError(await answer.text());
  return answer.json();
}

export async function sendJson(address, content) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(address, { method: "POST", headers, body: JSON.stringify(content), cache: "no-store" });
  if (!answer.ok) throw new AnswerError(await answer.text());
  return answer.json();
}

export async function getText(address) {
  const answer = await fetch(address, { cache: "no-store" });
  if (!answer.ok) throw new AnswerError(await answer.text());
  return answer.text();
}

export const ofRun = (what, name) => `${what}?run=${encodeURIComponent(name)}`;
