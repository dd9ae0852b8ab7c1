"""Evaluation of every checkpoint of a run."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.manifest import MANIFEST, CorruptCheckpointError
from jaxsrl.checkpoints.store import RemovedCheckpointError
from jaxsrl.evaluation.evaluate import EvaluationReport, evaluate
from jaxsrl.evaluation.load_agent import LoadedAgent, counted_agents
from jaxsrl.evaluation.worker_rows import in_workers
from jaxsrl.plots.bootstrap import bootstrap_mean
from jaxsrl.runs.summary import checkpoint_steps


@dataclasses.dataclass(frozen=True)
class CheckpointEvaluation:
    """Evaluation of one checkpoint.

    Attributes:
        update: update of the checkpoint.
        env_steps: env steps trained by then.
        report: results of the episodes.
        low: lower end of the 95 % bootstrap interval of the mean return, over episodes.
        high: upper end.
        env_kwargs: arguments of the environments that replace those of training.
    """

    update: int
    env_steps: int
    report: EvaluationReport
    low: float
    high: float
    env_kwargs: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON data of `jaxsrl evaluate --all --json`."""
        return {
            "update": self.update,
            "env_steps_trained": self.env_steps,
            **self.report.to_json(),
            "mean_return_low": self.low,
            "mean_return_high": self.high,
        }


def evaluate_checkpoints(
    run: Path,
    load: Callable[[Path], LoadedAgent],
    settings: Callable[[Mapping[str, Any], EnvSpec], dict[str, Any]],
    *,
    processes: int = 0,
) -> Iterator[CheckpointEvaluation | str]:
    """Evaluates the checkpoints of a run, oldest first, all with the same seeds; see `evaluate`.

    Args:
        run: run directory.
        load: loads a checkpoint directory, such as `load_agent`.
        settings: returns the arguments of `evaluate` from a checkpoint's metadata and the spec of its environments.
        processes: worker processes that step the environments.

    Yields:
        Each evaluation when it is done; or a line that says why a checkpoint is skipped.

    Raises:
        UserError: If the run has no checkpoints; or see `load` and `evaluate`.
    """
    steps = checkpoint_steps(run)
    if not steps:
        raise UserError(f"{run} has no checkpoints: expected a run directory with checkpoints/ in it (runs/<name>)")
    for step in steps:
        path = run / "checkpoints" / str(step)
        try:
            if not path.is_dir():
                raise RemovedCheckpointError(f"{path} was removed before it was read")
            if not (path / MANIFEST).is_file():
                raise CorruptCheckpointError(f"{path}: {MANIFEST} is missing")
            loaded = load(path)
        except (RemovedCheckpointError, CorruptCheckpointError) as error:
            problem = "damaged checkpoint skipped: " if isinstance(error, CorruptCheckpointError) else ""
            yield f"{problem}{error}"
            continue
        if loaded.mismatches:
            yield f"{path}: {loaded.mismatches}"
        source = in_workers(loaded.source, processes)
        arguments = settings(loaded.metadata, source.spec())
        report = evaluate(loaded.agent, loaded.params, source, **arguments).of_agents(counted_agents(loaded.metadata))
        low, high = bootstrap_mean(np.array(report.returns)[:, None])
        env_steps = int(loaded.metadata.get("env_steps", 0))
        yield CheckpointEvaluation(step, env_steps, report, float(low[0]), float(high[0]), loaded.env_kwargs)
