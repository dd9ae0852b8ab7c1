"""Comparison of predictions with measurements: small runs on this machine, and their simulations."""

import dataclasses
import statistics
import tempfile
from typing import Any

from envpool_bridge.limits import count_cores
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import Experiment
from jaxsrl.metrics.record_file import SPEED, read_steady_records
from jaxsrl.plan.pool_shape import pool_shape
from jaxsrl.planner.calibration import Calibration
from jaxsrl.planner.simulator.simulate import simulate

_MOST_SECONDS, _HALVINGS = 5e-3, 12
_PASSES, _REFERENCE_RUNS, _MIN_UPDATES = 3, 4, 20


@dataclasses.dataclass(frozen=True)
class Point:
    """A small run."""

    rows: int
    workers: int
    lanes_per_worker: int = 2
    max_policy_lag: int = 1


REFERENCE = Point(128, 1)
"""The only run that a calibration is fitted to; the others are predicted."""

POINTS = (
    REFERENCE,  # again: an error here shows that the machine's speed has changed
    Point(64, 1),
    Point(128, 2),
    Point(128, 2, max_policy_lag=0),
    Point(256, 2),
    Point(128, 2, lanes_per_worker=1),
)


def compare(
    calibration: Calibration, experiment: Experiment, points: tuple[Point, ...] = POINTS, seconds: float = 6.0
) -> list[dict[str, Any]]:
    """Returns one entry per point: its sizes, measured and predicted env steps per second, and their relative error.

    Every point runs in each of a few passes over all of them, and its fastest run counts as `measured`: other load on the
    machine only slows, and varies over time. If `slowest` is far below, the comparison says little.
    """
    configs = [_config(experiment, point) for point in points]
    predicted = [predict_here(calibration, config) for config in configs]
    passes = [
        [_measure(experiment, config, expected, seconds) for config, expected in zip(configs, predicted, strict=True)]
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
    """Returns the calibration whose handover cost makes the reference run as fast as measured here.

    This cost per step covers doorbells, wake-ups, the worker's loop, and cold caches. It is not measured separately, but is
    the difference to the run's time. The fastest of several runs counts: other load only slows, and all predictions depend on
    it.
    """
    config = _config(experiment, REFERENCE)
    expected = predict_here(calibration, config)
    measured = max(_measure(experiment, config, expected, seconds) for _ in range(_REFERENCE_RUNS))
    return with_handover_cost(calibration, config, measured)


def with_handover_cost(calibration: Calibration, config: RunConfig, measured: float) -> Calibration:
    """Finds by bisection the handover cost that predicts `measured` env steps per second; 0 if the run is slower."""
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
        plan="single_learner_fine",
        num_envs=point.rows,
        max_policy_lag=point.max_policy_lag,
        pool=dataclasses.replace(
            experiment.run.pool, num_workers=point.workers, lanes_per_worker=point.lanes_per_worker, workers_per_lane=1
        ),
        learner=dataclasses.replace(experiment.run.learner, num_devices=1),
    )


def predict_here(calibration: Calibration, config: RunConfig) -> float:
    """Returns the simulated env steps per second of such a run on this machine."""
    shape = pool_shape("single_learner_fine", config)
    cores = count_cores()
    return simulate(calibration.scenario(shape, config.policy_lag, cores)).env_steps_per_second


def _measure(experiment: Experiment, config: RunConfig, expected: float, seconds: float) -> float:
    """Returns the median env steps per second of a run of about `seconds` at the `expected` speed, from one-second records."""
    updates = max(_MIN_UPDATES, round(seconds * expected / config.env_steps_per_update))
    with tempfile.TemporaryDirectory() as directory:
        config = dataclasses.replace(
            config,
            directory=directory,
            name="point",
            total_env_steps=updates * config.env_steps_per_update,
            metrics=dataclasses.replace(config.metrics, interval_seconds=1.0),
            checkpoint=dataclasses.replace(config.checkpoint, interval_updates=0),
            eval=dataclasses.replace(config.eval, every=0, final_episodes=0),
        )
        report = dataclasses.replace(experiment, run=config).train(quiet=True)
        records = read_steady_records(report.directory / "metrics.jsonl")
    return statistics.median(record[SPEED] for record in records)
