"""Prometheus metrics of records: names in Prometheus style, base units and help texts."""

import dataclasses
from typing import Literal, NamedTuple


@dataclasses.dataclass(frozen=True)
class PromMetric:
    """Metric that every run has.

    Attributes:
        name: Prometheus name; samples of a counter have the suffix `_total`.
        recorded: name in records.
        kind: "counter" or "gauge"; a counter never decreases during the life of the process.
        help: description with its unit.
        scale: factor from the record's unit to Prometheus' base unit.
    """

    name: str
    recorded: str
    kind: Literal["counter", "gauge"]
    help: str
    scale: float = 1.0


EXPORTED = (
    PromMetric("jaxsrl_updates", "update", "counter", "Updates of the parameters."),
    PromMetric("jaxsrl_env_steps", "env_steps", "counter", "Environment steps trained on."),
    PromMetric("jaxsrl_frames", "frames", "counter", "Frames: env steps times the action repeat."),
    PromMetric("jaxsrl_train_seconds", "wall_seconds", "counter", "Seconds since this process started training."),
    PromMetric("jaxsrl_episodes", "episode/count", "counter", "Episodes finished."),
    PromMetric("jaxsrl_episode_return_mean", "episode/return_mean", "gauge", "Mean return, last 100 episodes."),
    PromMetric("jaxsrl_episode_return_max", "episode/return_max", "gauge", "Largest return, last 100 episodes."),
    PromMetric("jaxsrl_episode_length_mean_steps", "episode/length_mean", "gauge", "Mean length, last 100 episodes."),
    PromMetric("jaxsrl_episode_mean_seconds", "episode/seconds_mean", "gauge", "Mean duration, last 100 episodes."),
    PromMetric("jaxsrl_env_steps_per_second", "speed/env_steps_per_second", "gauge", "Since the previous record."),
    PromMetric("jaxsrl_inference_batch_rows", "inference/batch_rows", "gauge", "Mean rows per inference call."),
    PromMetric(
        "jaxsrl_inference_latency_seconds", "inference/latency_ms", "gauge", "Mean duration of an inference call.", 1e-3
    ),
    PromMetric("jaxsrl_policy_lag_mean_updates", "policy/lag_mean", "gauge", "Mean policy lag."),
    PromMetric(
        "jaxsrl_policy_lag_max_updates", "policy/lag_max", "gauge", "Largest policy lag of any step in this process."
    ),
    PromMetric(
        "jaxsrl_trajectories_dropped", "trajectories/dropped_total", "counter", "Slots released without an update."
    ),
    PromMetric("jaxsrl_env_restarts", "env/restarts_total", "counter", "Restarts of environment processes."),
    PromMetric("jaxsrl_env_hangs", "env/hangs_total", "counter", "Restarts because of a hang."),
    PromMetric(
        "jaxsrl_env_truncated_by_failure",
        "env/truncated_by_failure_total",
        "counter",
        "Episodes truncated by a failure.",
    ),
    PromMetric("jaxsrl_env_disabled_rows", "env/disabled_rows", "gauge", "Rows that are no longer stepped."),
    PromMetric(
        "jaxsrl_env_repaired_outputs", "env/repaired_outputs_total", "counter", "Outputs that were not as declared."
    ),
    PromMetric(
        "jaxsrl_nonfinite_updates",
        "learner/nonfinite_updates_total",
        "counter",
        "Non-finite updates, which were skipped.",
    ),
    PromMetric("jaxsrl_checkpoint_update", "checkpoint/update", "gauge", "Update of the newest checkpoint."),
    PromMetric(
        "jaxsrl_failed_saves", "checkpoint/failed_saves_total", "counter", "Checkpoints that could not be written."
    ),
    PromMetric("jaxsrl_machine_cpu_busy_ratio", "machine/cpu_busy", "gauge", "Fraction of all cores' time."),
    PromMetric(
        "jaxsrl_machine_memory_used_bytes", "machine/memory_used_bytes", "gauge", "Memory of the machine in use."
    ),
    PromMetric(
        "jaxsrl_machine_memory_free_bytes", "machine/memory_free_bytes", "gauge", "Memory that is left to the run."
    ),
    PromMetric("jaxsrl_dropped_records", "metrics/dropped_records_total", "counter", "Records dropped by a sink."),
)
"""Metrics with their own names; each is exported only if the record has it."""


class LabeledMetric(NamedTuple):
    """Gauge with a label, whose value is a part of the name in records.

    Attributes:
        name: Prometheus name.
        recorded: pattern of the name in records, with the label's value as its group.
        label: name of the label.
        help: description with its unit.
    """

    name: str
    recorded: str
    label: str
    help: str


LABELED = (
    LabeledMetric(
        "jaxsrl_fragment_busy_ratio", r"utilization/(.+)/busy", "fragment", "Fraction of wall time that it was busy."
    ),
    LabeledMetric(
        "jaxsrl_fragment_wait_ratio", r"utilization/(.+)/wait", "fragment", "Fraction of wall time that it waited."
    ),
    LabeledMetric("jaxsrl_process_cpu_cores", r"process/(.+)/cpu_cores", "process", "CPU seconds a second."),
    LabeledMetric("jaxsrl_process_memory_bytes", r"process/(.+)/memory_bytes", "process", "Resident memory."),
    LabeledMetric("jaxsrl_gpu_busy_ratio", r"gpu/(\d+)/busy", "gpu", "Fraction of time in which a kernel ran."),
    LabeledMetric("jaxsrl_gpu_memory_bytes", r"gpu/(\d+)/memory_bytes", "gpu", "Memory used by all processes."),
)

OTHER = "jaxsrl_metric"
"""Gauge with the label `name` (the recorded name) for all other numbers, such as the agent's."""

LAST_RECORD = "jaxsrl_last_record_timestamp_seconds"
"""Gauge: Unix time of the newest record; an alert for a stalled run compares it with `time()`."""
