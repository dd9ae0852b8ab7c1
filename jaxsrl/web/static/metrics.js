// What metrics are called for people, and which belong together. Names that are not here are shown as they are.

export const RETURN = "episode/return_mean";
export const EVALUATED = "eval/return_mean";
const EVALUATED_SAMPLES = "eval/sample/return_mean";
const RETURNS = [RETURN, EVALUATED, EVALUATED_SAMPLES];

const KNOWN = {
  "episode/return_mean": ["Episode return", "mean of the last 100 episodes"],
  "episode/return_max": ["Best episode", "largest return of the last 100"],
  "episode/length_mean": ["Episode length", "env steps"],
  "episode/seconds_mean": ["Episode duration", "seconds on the wall"],
  "episode/count": ["Episodes", "finished in all"],
  [EVALUATED]: ["Evaluated return", "mean of an evaluation"],
  [EVALUATED_SAMPLES]: ["Evaluated return, sampled", "mean of an evaluation with sampled actions"],
  "inference/batch_rows": ["Inference batch", "rows a call"],
  "inference/latency_ms": ["Inference latency", "milliseconds a call"],
  "policy/lag_mean": ["Policy lag", "updates, mean"],
  "policy/lag_max": ["Largest policy lag", "updates"],
  "policy/entropy": ["Policy entropy", "nats"],
  "policy/approx_kl": ["Policy change", "approximate KL divergence"],
  "policy/clip_fraction": ["Clipped", "share of ratios"],
  "value/explained_variance": ["Explained variance", "of returns, by the value"],
  "gradient/norm": ["Gradient norm", "before clipping"],
  learning_rate: ["Learning rate", ""],
  "loss/total": ["Loss", "all terms"],
  "loss/policy": ["Policy loss", ""],
  "loss/value": ["Value loss", ""],
  "replay/size": ["Experience kept", "env steps"],
  "env/restarts_total": ["Restarts", "environment processes"],
  "machine/cpu_busy": ["Processor busy", "share of all cores, of all programs"],
  "machine/memory_used_bytes": ["Memory in use", "bytes, of all programs"],
  "machine/memory_free_bytes": ["Memory left", "bytes, to the run"],
  "checkpoint/update": ["Newest checkpoint", "update"],
};
// The last part of names of a process, a GPU or a device.
const USED = {
  cpu_cores: ["CPU", "cores"],
  count: ["processes", ""],
  memory_bytes: ["memory", "bytes"],
  gpu_memory_bytes: ["GPU memory", "bytes"],
  memory_total_bytes: ["memory in all", "bytes"],
  memory_peak_bytes: ["largest memory", "bytes"],
  busy: ["busy", "share of time"],
};
const GROUPS = [
  ["Episodes", /^episode\//],
  ["Evaluation", /^eval\//],
  [
    "Learning",
    /^(loss|policy\/(?!lag)|value|gradient|learning_rate|ppo\/|normalization|target|actor|critic|temperature)/,
  ],
  ["Replay", /^(replay|priorities)/],
  ["Speed", /^(speed|inference|policy\/lag|server|utilization|learner_process|memory)/],
  ["Machine", /^(process|machine|gpu|device)\//],
  ["Reliability", /^(env\/|learner\/|trajectories\/|checkpoint\/|recover|metrics\/)/],
];
const SPEED = "speed/env_steps_per_second";
const AXES = new Set(["update", "env_steps", "frames", "elapsed_seconds"]);

// `unit` is that of the runs' steps.
export function describeMetric(name, unit = "env steps") {
  if (name === SPEED) return { name, title: "Speed", about: `${unit} a second` };
  if (KNOWN[name]) return { name, title: KNOWN[name][0], about: KNOWN[name][1] };
  const share = /^utilization\/(.+)\/(busy|wait)$/.exec(name);
  if (share)
    return {
      name,
      title: `${share[1][0].toUpperCase()}${share[1].slice(1)} ${share[2] === "busy" ? "busy" : "waiting"}`,
      about: "share of wall time",
    };
  const used = /^(process|gpu|device)\/(.+)\/([a-z_]+)$/.exec(name);
  if (used && USED[used[3]]) {
    const [what, about] = USED[used[3]];
    const who = used[1] === "process" ? used[2].replaceAll("_", " ") : `${used[1] === "gpu" ? "GPU" : "device"} ${used[2]}`;
    return { name, title: `${who[0].toUpperCase()}${who.slice(1)}: ${what}`, about };
  }
  const info = /^episode\/info\/(.+)_mean$/.exec(name);
  return info
    ? { name, title: info[1], about: "info field of the environment, mean of 100 episodes" }
    : { name, title: name, about: "" };
}

// The columns with a metric: those of records, or of evaluations if only these have it.
export function columnsWith(records, metric) {
  return metric in records.columns ? records : records.evaluations;
}

// Metrics of these records and of their evaluations by group: [[group, [name, ...]], ...], returns first; and those that never
// change, with their value. Returns are drawn even then.
export function grouped(manyRecords) {
  const columns = manyRecords.flatMap((records) => [records.columns, records.evaluations.columns]);
  const names = new Set(columns.flatMap(Object.keys));
  const groups = new Map(GROUPS.map(([title]) => [title, []]));
  const constant = [];
  const returns = RETURNS.filter((name) => names.has(name)),
    others = [...names].filter((name) => !RETURNS.includes(name)).sort();
  for (const name of [...returns, ...others]) {
    if (AXES.has(name)) continue;
    const only = RETURNS.includes(name) ? undefined : onlyValue(manyRecords, name);
    if (only !== undefined) {
      constant.push([name, only]);
      continue;
    }
    const group =
      GROUPS.find(([, pattern]) => pattern.test(name))?.[0] ?? (name.includes("/") ? name.split("/")[0] : "Others");
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(name);
  }
  return { groups: [...groups].filter(([, members]) => members.length), constant };
}

// The one value that a metric has everywhere, where it has at least three; undefined if it varies or is too young to tell.
function onlyValue(manyRecords, name) {
  let only,
    count = 0;
  for (const records of manyRecords) {
    for (const value of columnsWith(records, name).columns[name] ?? []) {
      if (value === null) continue;
      if (count && value !== only) return undefined;
      only = value;
      count += 1;
    }
  }
  return count >= 3 ? only : undefined;
}
