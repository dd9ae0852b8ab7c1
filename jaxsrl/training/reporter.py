"""Turns the totals of a run's parts into a record every few seconds."""

import time
from collections.abc import Callable, Mapping

import jax

from agents.api import Metrics
from envpool_bridge.supervisor.supervisor import SupervisionTotals
from jaxsrl.collect.collector import SUPERVISION_METRICS, supervision_metrics
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.metrics.cluster_traffic import traffic_values
from jaxsrl.metrics.sinks import MetricsSink, Record
from jaxsrl.metrics.utilization import utilization
from jaxsrl.plan.plan import Plan
from jaxsrl.replay.on_device import GRADIENT_STEPS, REPLAY_METRICS

_COUNTED = supervision_metrics([SupervisionTotals()])
"""Totals of a source that are recorded as they are."""


class Reporter:
    """Writes records of rates and shares since the record before. One thread: the learner's.

    Args:
        sink: takes the records.
        learner: Learner whose state and totals to read.
        source_totals: Totals of everything else: seconds and counts since the start, by name, as Collector gives them.
        steps_per_update: env steps that an update learns from.
        action_repeat: frames an env step.
        plan: Plan whose fragments the shares are of.
        machine: returns what the machine does, by metric name (`MachineUsage.values`).
        started: `time.perf_counter()` when training started, before programs were compiled; None for now.
    """

    def __init__(
        self,
        sink: MetricsSink,
        learner: AnyLearner,
        source_totals: Callable[[], Mapping[str, float]],
        steps_per_update: int,
        action_repeat: int,
        plan: Plan,
        machine: Callable[[], Mapping[str, float]] = dict,
        started: float | None = None,
    ) -> None:
        self._plan, self._machine = plan, machine
        self._sink, self._learner, self._source_totals = sink, learner, source_totals
        self._steps_per_update, self._repeat = steps_per_update, action_repeat
        self._since = time.perf_counter()
        self._started = self._since if started is None else started
        self._before: dict[str, float] = self._totals()
        self._measured_from = (self._since, self._before)  # the newest record's beginning
        self.checkpoint_update = 0
        self._written: tuple[int, ...] = ()

    @property
    def num_updates(self) -> int:
        """Returns updates of the learner so far."""
        return self._learner.num_updates

    @property
    def has_news(self) -> bool:
        """Returns whether an update or a save has followed the newest record."""
        return self._written != self._progress()

    @property
    def repaired_outputs(self) -> int:
        """Returns the number of outputs that environments did not return as declared, up to the newest record."""
        return int(self._before.get(SUPERVISION_METRICS["outputs_repaired"], 0.0))

    def _progress(self) -> tuple[int, ...]:
        return self._learner.num_updates, self.checkpoint_update, self._learner.stats.unsaved

    def due(self, every_seconds: float) -> bool:
        """Returns whether the newest record is older than this."""
        return time.perf_counter() - self._since >= every_seconds

    def write(self, episodes: Mapping[str, float]) -> None:
        """Writes a record now, with these episode means; fetches the newest update's metrics from the device."""
        now, totals = time.perf_counter(), self._totals()
        if totals["learner/updates"] > self._before["learner/updates"]:
            self._measured_from = (self._since, self._before)
        # Without an update since then, as at a run's end, the record before still holds: rates are measured with it.
        since, before = self._measured_from
        seconds = max(now - since, 1e-9)
        gained = {name: totals[name] - before.get(name, 0.0) for name in totals}
        updates = gained["learner/updates"]
        values = update_metrics(self._learner.metrics)
        values |= episodes
        values |= utilization(self._plan, gained, seconds)
        values |= self._machine()
        values |= call_rates(gained) | traffic_values(totals, gained, seconds)
        values |= {name: total for name, total in totals.items() if name in _COUNTED}
        values["speed/env_steps_per_second"] = updates * self._steps_per_update / seconds
        values["policy/lag_mean"] = gained["learner/lag_sum"] / updates if updates else 0.0
        values["policy/lag_max"] = float(self._learner.stats.lag_max)
        values["trajectories/dropped_total"] = float(self._learner.stats.dropped)
        values["trajectories/reused_total"] = float(self._learner.stats.reused)
        values["learner/nonfinite_updates_total"] = float(self._learner.stats.skipped)
        values["checkpoint/failed_saves_total"] = float(self._learner.stats.unsaved)
        values["checkpoint/update"] = float(self.checkpoint_update)
        env_steps = self._learner.num_updates * self._steps_per_update
        self._sink.write(
            Record(self._learner.num_updates, env_steps, env_steps * self._repeat, now - self._started, values)
        )
        self._since, self._before, self._written = now, totals, self._progress()

    def _totals(self) -> dict[str, float]:
        stats = self._learner.stats
        own = {
            "learner/busy_seconds": stats.busy_seconds,
            "learner/lag_sum": stats.lag_sum,
            "learner/updates": float(stats.updates),
        }
        return {**self._source_totals(), **own}


def update_metrics(metrics: Metrics) -> dict[str, float]:
    """Returns the metrics of an update, fetched from the device; without those of an agent that took no gradient step."""
    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
    steps = {
        name.removesuffix(GRADIENT_STEPS): value for name, value in values.items() if name.endswith(GRADIENT_STEPS)
    }
    idle = tuple(policy for policy, count in steps.items() if not count)
    kept = (*REPLAY_METRICS, SKIPPED)
    return {name: value for name, value in values.items() if not name.startswith(idle) or name.endswith(kept)}


def call_rates(gained: Mapping[str, float]) -> dict[str, float]:
    """Returns the inference server's batch size (rows) and latency (milliseconds), from totals; empty where it was not called."""
    calls = gained.get("inference/calls", 0.0)
    if not calls:
        return {}
    values = {"inference/batch_rows": gained["inference/rows"] / calls}
    if "inference/busy_seconds" in gained:
        values["inference/latency_ms"] = gained["inference/busy_seconds"] / calls * 1e3
    return values
