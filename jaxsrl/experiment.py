"""Training and then evaluating one experiment: what the scripts in `experiments/` call."""

import contextlib
import contextvars
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from agents.api import AnyAgent, Mode
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.config.run_config import RunConfig
from jaxsrl.evaluation.evaluate import EvaluationReport, evaluate
from jaxsrl.machine.lifecycle import exit_status
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.load_policy import load_policy
from jaxsrl.run_directory import write_json
from jaxsrl.run_plan import RunReport, run

_skip_training = contextvars.ContextVar("skip_training", default=False)


@dataclasses.dataclass(frozen=True)
class Composed:
    """What an experiment composed for its run; as the arguments of `train_and_evaluate`."""

    agent: AnyAgent
    source: EnvSource
    spec: EnvSpec
    config: RunConfig


class TrainingSkippedError(Exception):
    """Raised by `train_and_evaluate` instead of training, inside `skip_training`."""

    def __init__(self, composed: Composed) -> None:
        super().__init__("training was skipped: only what the experiment composes is wanted")
        self.composed = composed


@contextlib.contextmanager
def skip_training() -> Iterator[None]:
    """Inside, experiments compose and validate as ever, and `train_and_evaluate` raises TrainingSkippedError."""
    token = _skip_training.set(True)
    try:
        yield
    finally:
        _skip_training.reset(token)


def training_is_skipped() -> bool:
    """Whether this is inside `skip_training`."""
    return _skip_training.get()


def train_and_evaluate(
    experiment: Any, agent: AnyAgent, source: EnvSource, spec: EnvSpec, config: RunConfig
) -> tuple[RunReport, EvaluationReport | None]:
    """Trains (or resumes), plays greedy episodes, prints where everything is.

    Args:
        experiment: the dataclass tree to save.
        agent: to train.
        source: of environments.
        spec: of the source.
        config: of the run.

    Returns:
        The run's report, and the evaluation's (None if no episodes are wanted, and at learner processes but process 0).

    Raises:
        SystemExit: a signal stopped the run; status 128 + its number, as a shell reports it, or 75 (try again) for SIGUSR1.
        TrainingSkippedError: inside `skip_training`.
    """
    if _skip_training.get():
        raise TrainingSkippedError(Composed(agent, source, spec, config))
    plan = load_policy(config.policy)(config, Resources.detect())
    report = run(plan, agent, source, config, experiment=experiment, spec=spec)
    speed = report.env_steps / report.seconds if report.seconds else 0.0
    if report.stopped_by:
        if report.wrote_directory:
            print(f"stopped by {report.stopped_by} at {report.env_steps:,} env steps; the same command resumes")  # noqa: T201
        sys.exit(exit_status(report.stopped_by))
    if not report.wrote_directory:
        return report, None
    if report.seconds:
        print(f"trained {report.env_steps:,} env steps in {report.seconds:.1f} s ({speed:,.0f} env steps/s)")  # noqa: T201
    evaluation = None
    if config.evaluation_episodes:
        evaluation = evaluate(
            agent, report.state.params, source, episodes=config.evaluation_episodes, seed=config.seed, mode=Mode.GREEDY
        )
        write_json(report.directory / "eval.json", evaluation.to_json())
        print(  # noqa: T201
            f"evaluated {len(evaluation.returns)} greedy episodes: mean return {evaluation.mean_return:.1f} "
            f"(std {evaluation.std_return:.1f})"
        )
    directory = report.directory
    print(  # noqa: T201
        f"run directory: {directory}\n"
        f"  checkpoints/ metrics.jsonl eval.json config.json plan.json log.txt\n"
        f"  jaxsrl view {directory}\n"
        f"  jaxsrl evaluate {directory} --episodes 100"
        + (f"\n  tensorboard --logdir {directory}" if config.metrics.tensorboard else "")
    )
    return report, evaluation
