"""What records are called for Prometheus: names in its style, base units, and what each counts or measures."""

import dataclasses
from typing import Literal

from jaxsrl.metrics.sinks import Record


@dataclasses.dataclass(frozen=True)
class PromMetric:
    """A metric that every run has.

    Attributes:
        name: as Prometheus sees it; a counter's samples have `_total` behind it.
        recorded: as records call it.
        kind: a counter never falls while the process lives.
        help: what it is, with its unit.
        scale: from the record's unit to Prometheus' base unit.
    """

    name: str
    recorded: str
    kind: Literal["counter", "gauge"]
    help: str
    scale: float = 1.0


EXPORTED = (
    PromMetric("jaxsrl_updates", "update", "counter", "Updates of the parameters."),
    PromMetric("jaxsrl_env_steps", "env_steps", "counter", "Environment steps learned from."),
    PromMetric("jaxsrl_frames", "frames", "counter", "Frames: env steps times the action repeat."),
    PromMetric("jaxsrl_train_seconds", "wall_seconds", "counter", "Seconds since this process began to train."),
    PromMetric("jaxsrl_episodes", "episode/count", "counter", "Episodes finished."),
    PromMetric("jaxsrl_episode_return_mean", "episode/return_mean", "gauge", "Mean return, last 100 episodes."),
    PromMetric("jaxsrl_episode_return_max", "episode/return_max", "gauge", "Largest return, last 100 episodes."),
    PromMetric("jaxsrl_episode_length_mean_steps", "episode/length_mean", "gauge", "Mean length, last 100 episodes."),
    PromMetric("jaxsrl_episode_mean_seconds", "episode/seconds_mean", "gauge", "Mean duration, last 100 episodes."),
    PromMetric("jaxsrl_env_steps_per_second", "speed/env_steps_per_second", "gauge", "Since the record before."),
    PromMetric("jaxsrl_inference_batch_rows", "inference/batch_rows", "gauge", "Rows that a call acted for."),
    PromMetric("jaxsrl_inference_latency_seconds", "inference/latency_ms", "gauge", "Duration of a call.", 1e-3),
    PromMetric("jaxsrl_policy_lag_mean_updates", "policy/lag_mean", "gauge", "Updates that acting was behind."),
    PromMetric("jaxsrl_policy_lag_max_updates", "policy/lag_max", "gauge", "The most of any step of this process."),
    PromMetric("jaxsrl_trajectories_dropped", "trajectories/dropped", "counter", "Slots given back without an update."),
    PromMetric("jaxsrl_environment_restarts", "environment/restarts", "counter", "Environment processes begun again."),
    PromMetric("jaxsrl_environment_hangs", "environment/hangs", "counter", "Those of them that had hung."),
    PromMetric("jaxsrl_environment_episodes_cut", "environment/episodes_cut", "counter", "Episodes a failure ended."),
    PromMetric("jaxsrl_environment_rows_disabled", "environment/rows_disabled", "gauge", "Rows not stepped any more."),
    PromMetric("jaxsrl_updates_skipped", "updates/skipped", "counter", "Updates left out as not finite."),
    PromMetric("jaxsrl_checkpoint_update", "checkpoint/update", "gauge", "Update of the newest checkpoint."),
    PromMetric("jaxsrl_checkpoints_unsaved", "checkpoint/unsaved", "counter", "Checkpoints that were not written."),
    PromMetric("jaxsrl_lost_records", "metrics/lost_records", "counter", "Records that some sink did not take."),
)
"""Metrics with names of their own; each only where the record has it."""

BY_FRAGMENT = {
    "busy_share/": ("jaxsrl_fragment_busy_ratio", "Share of wall time that the fragment worked."),
    "wait_share/": ("jaxsrl_fragment_wait_ratio", "Share of wall time that the fragment waited."),
}
"""Prefix of recorded names to a gauge with the label `fragment`."""

OTHER = "jaxsrl_metric"
"""Gauge with the label `name` for every other number of a record: the agent's own, as the record calls them."""

LAST_RECORD = "jaxsrl_last_record_timestamp_seconds"
"""Gauge: Unix time of the newest record; what an alert on a run that stands still compares with `time()`."""


def all_values(record: Record) -> dict[str, float]:
    """All numbers of a record by recorded name, the fixed ones too."""
    fixed = {
        "update": float(record.update),
        "env_steps": float(record.env_steps),
        "frames": float(record.frames),
        "wall_seconds": record.wall_seconds,
    }
    return fixed | record.values
