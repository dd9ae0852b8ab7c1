"""The validated inputs of a run, and its report."""

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax

from agents.api import AnyAgent, LearnerState
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class RunReport:
    """Result of a run.

    Attributes:
        directory: run directory.
        state: final learner state.
        num_updates: updates done in all.
        env_steps: environment steps done in all.
        seconds: time that this process trained.
        metrics: episode means at the end.
        stopped_by: the signal that ended it early, or "".
        stop_reason: why a stop rule or a callback ended it, or "".
        wrote_directory: whether this process wrote `directory`: of several learner processes, process 0 does.
        env_steps_before: environment steps that earlier processes of this run have done.
        repaired_outputs: outputs that environments did not return as declared, while this process trained.
    """

    directory: Path
    state: LearnerState = dataclasses.field(repr=False)
    num_updates: int
    env_steps: int
    seconds: float
    metrics: dict[str, float]
    stopped_by: str
    stop_reason: str = ""
    wrote_directory: bool = True
    env_steps_before: int = 0
    repaired_outputs: int = 0


class RandomKeys(NamedTuple):
    """Independent keys of a run: of initial parameters, of actions and of updates."""

    init: jax.Array
    act: jax.Array
    update: jax.Array


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """One call of `run`, validated, with the run directory locked.

    Attributes:
        plan: Plan to execute.
        agent: Agent to train, for single frames. An agent with replay on a device or without replay is an `Agent`
            (`jaxsrl.learner.learning_agent`); one with replay on the host is a `ReplayAgent`.
        source: Source of environments.
        spec: Specification of the source.
        config: Configuration of the run.
        directory: Directory of the run.
        identity: metadata of checkpoints: agent, experiment and spec.
        quiet: no output on the terminal.
        lifecycle: Lifecycle of the run's threads.
    """

    plan: Plan
    agent: AnyAgent
    source: EnvSource
    spec: EnvSpec
    config: RunConfig
    directory: RunDirectory
    identity: dict[str, Any]
    quiet: bool
    lifecycle: Lifecycle = dataclasses.field(default_factory=Lifecycle)

    @functools.cached_property
    def keys(self) -> RandomKeys:
        """Returns keys made from the run's seed."""
        return RandomKeys(*jax.random.split(jax.random.key(self.config.seed), 3))

    def log(self, line: str) -> None:
        """Writes a line to the run's log, and to the terminal unless the run is quiet."""
        self.directory.log(line)
        if not self.quiet:
            with contextlib.suppress(OSError):  # the terminal may be gone
                print(line, flush=True)  # noqa: T201
