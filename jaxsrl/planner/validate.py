"""Measured against predicted: small runs of the experiment's environment on this machine, and the same runs simulated."""

import dataclasses
import os
from typing import Any

from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import Experiment
from jaxsrl.plan.policies.pool_shape import pool_shape
from jaxsrl.planner.calibration import Calibration
from jaxsrl.planner.simulator.simulate import simulate

_MOST_SECONDS, _HALVINGS = 5e-3, 12
_PASSES, _REFERENCE_RUNS, _MIN_UPDATES = 3, 4, 20


@dataclasses.dataclass(frozen=True)
class Point:
    """A small run.

    Attributes:
        rows: environments.
        workers: processes.
        lanes_per_worker: as in RunConfig.
        max_policy_lag: as in RunConfig.
    """

    rows: int
    workers: int
    lanes_per_worker: int = 2
    max_policy_lag: int = 1


REFERENCE = Point(128, 1)
"""The one run that a calibration is fitted to; the others are predicted."""

POINTS = (
    REFERENCE,  # again: what is wrong here is how much faster or slower the machine has become
    Point(64, 1),
    Point(128, 2),
    Point(128, 2, max_policy_lag=0),
    Point(256, 2),
    Point(128, 2, lanes_per_worker=1),
)


def compare(
    calibration: Calibration, experiment: Experiment, points: tuple[Point, ...] = POINTS, seconds: float = 6.0
) -> list[dict[str, Any]]:
    """One entry a point: what it is, measured and predicted env steps per second, and predicted over measured less 1.

    Every point is run in each of a few passes over all of them, and the fastest of its runs is what counts as `measured`: what else
    the machine does only slows, and comes and goes. `slowest` is the slowest: far below, the comparison says little.
    """
    configs = [_config(experiment, point) for point in points]
    predicted = [predict_here(calibration, config) for config in configs]
    passes = [
        [_measured(experiment, config, expected, seconds) for config, expected in zip(configs, predicted, strict=True)]
        for _ in range(_PASSES)
    ]
    return [
        {
            **dataclasses.asdict(point),
            "measured": max(runs),
            "slowest": min(runs),
            "predicted": expected,
            "error": expected / max(runs) - 1,
        }
        for point, expected, runs in zip(points, predicted, zip(*passes, strict=True), strict=True)
    ]


def fit(calibration: Calibration, experiment: Experiment, seconds: float = 6.0) -> Calibration:
    """The calibration whose hand-over makes the reference run as fast as it is measured here.

    What a step costs besides stepping and acting (doorbells, wake-ups, the worker's loop, caches that another process has used) is
    not measured by itself, but is what is missing of that run's time. Of several runs the fastest counts: all predictions depend
    on it, and what else the machine does only slows.
    """
    config = _config(experiment, REFERENCE)
    expected = predict_here(calibration, config)
    measured = max(_measured(experiment, config, expected, seconds) for _ in range(_REFERENCE_RUNS))
    return with_handover_cost(calibration, config, measured)


def with_handover_cost(calibration: Calibration, config: RunConfig, measured: float) -> Calibration:
    """By bisection: the hand-over at which such a run is predicted to make `measured` env steps per second; 0 if it is slower."""
    low, high = 0.0, _MOST_SECONDS
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if predict_here(dataclasses.replace(calibration, handover_seconds=middle), config) > measured:
            low = middle
        else:
            high = middle
    return dataclasses.replace(calibration, handover_seconds=low)


def _config(experiment: Experiment, point: Point) -> RunConfig:
    return dataclasses.replace(
        experiment.run,
        policy="single_learner_fine",
        num_envs=point.rows,
        num_env_workers=point.workers,
        lanes_per_worker=point.lanes_per_worker,
        workers_per_lane=1,
        max_policy_lag=point.max_policy_lag,
        num_devices=1,
    )


def predict_here(calibration: Calibration, config: RunConfig) -> float:
    """Env steps per second of such a run on this machine, simulated."""
    shape = pool_shape("single_learner_fine", config)
    cores = len(os.sched_getaffinity(0))
    return simulate(calibration.scenario(shape, config.max_policy_lag, cores)).env_steps_per_second


def _measured(experiment: Experiment, config: RunConfig, expected: float, seconds: float) -> float:
    """Returns the env steps per second of a run of `seconds` at the `expected` speed: the median of its one-second records."""
    import json
    import statistics
    import tempfile

    updates = max(_MIN_UPDATES, round(seconds * expected / config.env_steps_per_update))
    with tempfile.TemporaryDirectory() as directory:
        config = dataclasses.replace(
            config,
            directory=directory,
            name="point",
            env_steps=updates * config.env_steps_per_update,
            log_every_seconds=1.0,
            checkpoint_every_updates=0,
            evaluation_episodes=0,
        )
        report = dataclasses.replace(experiment, run=config).train(quiet=True)
        records = [json.loads(line) for line in (report.directory / "metrics.jsonl").read_text().splitlines()]
    speeds = [record["speed/env_steps_per_second"] for record in records if record.get("speed/env_steps_per_second")]
    return statistics.median(speeds[1:-1] or speeds[-1:])
