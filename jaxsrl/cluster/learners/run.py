"""`run` in one of several learner processes."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax

from agents.api import AnyAgent
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.cluster.learners.collectors import ProcessCollectors
from jaxsrl.cluster.learners.coordinator import ProcessCoordinator
from jaxsrl.cluster.learners.placement import place_together
from jaxsrl.cluster.learners.processes import Processes, join, joined
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import differences
from jaxsrl.learner.learning_agent import learning_agent
from jaxsrl.machine.program_cache import enable_program_cache
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.plan import Plan, plan_to_json
from jaxsrl.run_directory import RunDirectory
from jaxsrl.training.host_trainable import HostTrainable
from jaxsrl.training.preflight import check_run
from jaxsrl.training.setup import RunReport, TrainingSetup
from jaxsrl.training.train import train

_IDENTITY = "jaxsrl/identity"
_MAY_DIFFER = (".distributed", ".directory")


class NullRunDirectory(RunDirectory):
    """The run directory at a process that does not write it: nothing is locked, made or written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def validate(self, config: dict[str, Any]) -> None:
        pass

    def record(self, config: dict[str, Any], plan: Any) -> None:
        pass

    def write_plan(self, plan: Any) -> None:
        pass

    def log(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


def several(config: RunConfig) -> Processes | None:
    """The processes of a run of several, joined if they were not; None for a run of one.

    Raises:
        UserError: they did not come together.
    """
    if not config.distributed.is_on:
        return None
    found = joined(config.distributed) or join(config.distributed, config.host_devices)
    return found if found is not None and found.num_processes > 1 else None


@dataclasses.dataclass(frozen=True)
class WholeRun:
    """One call of `run`, not checked yet.

    Attributes:
        plan: of the whole run, with what the agent needs.
        agent: to train.
        source: of environments.
        spec: of the source.
        config: of the run.
        path: of the run's directory.
        identity: what checkpoints say of the run.
        quiet: no output on the terminal.
    """

    plan: Plan
    agent: AnyAgent
    source: EnvSource
    spec: EnvSpec
    config: RunConfig
    path: Path
    identity: dict[str, Any]
    quiet: bool


def run_together(processes: Processes, whole: WholeRun) -> RunReport:
    """This process's part of a run; then it has left the others.

    Args:
        processes: joined.
        whole: what all of them run.

    Raises:
        UserError: this plan cannot run in several processes, or they were started with different experiments.
        LostLearnerError: another process failed, was lost or did not come.
        EnvPoolError: an environment of this process failed.
    """
    agent, source, spec = whole.agent, whole.source, whole.spec
    with processes.together(), contextlib.ExitStack() as held:
        enable_program_cache(Path(whole.config.directory), jax.default_backend())
        place = held.enter_context(place_together(processes, whole.config, whole.plan, Resources.detect()))
        plan = place.plan
        check_run(plan, agent, source, spec, place.resources)
        _check_same(processes, {**whole.identity, "plan": plan_to_json(plan), "jax": jax.__version__})
        trained = learning_agent(with_stacked_frames(agent, spec), spec, plan.num_rows, plan.shape.rollout_length, None)
        with RunDirectory(whole.path) if processes.is_main else NullRunDirectory(whole.path) as directory:
            directory.validate(whole.identity)
            quiet = whole.quiet or not processes.is_main
            setup = TrainingSetup(plan, trained, source, spec, whole.config, directory, whole.identity, quiet)
            coordinator = ProcessCoordinator(processes, whole.config)
            collectors = ProcessCollectors(setup, processes, coordinator.consensus, place.open_engine)
            report = train(setup, HostTrainable(setup, collectors), coordinator)
            # Host arrays, which this process can use without the others.
            state = jax.device_get(report.state)
        processes.leave()
    return dataclasses.replace(report, state=state, wrote_directory=processes.is_main)


def _check_same(processes: Processes, identity: dict[str, Any]) -> None:
    """Refuses processes that were started with other experiments than process 0.

    Raises:
        UserError: lists what differs.
    """
    text = json.dumps(identity, sort_keys=True)
    if processes.is_main:
        processes.tell(_IDENTITY, text)
        return
    lines = differences(json.loads(processes.wait_for(_IDENTITY)), json.loads(text))
    lines = [line for line in lines if not any(name in line.split(":")[0] for name in _MAY_DIFFER)]
    if lines:
        listed = "\n  ".join(lines)
        raise UserError(
            f"process {processes.process_id} was started with another experiment than process 0 (theirs -> its):\n  {listed}\n"
            f"start the same command at every process, but for --run.distributed.process-id"
        )
