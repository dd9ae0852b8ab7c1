"""The plan of an experiment file, without training: what `jaxsrl plan` shows."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners.placement import planned_together
from jaxsrl.cluster.placement import place_of
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.experiment import Composed, TrainingSkippedError, skip_training
from jaxsrl.launch import launch
from jaxsrl.learner.learning_agent import kept_bytes, replay_bytes
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.cost.channel_bytes import PlanBytes, bytes_of_plan, params_bytes_of
from jaxsrl.plan.cost.network_bytes import bytes_between_nodes
from jaxsrl.plan.import_file import import_file
from jaxsrl.plan.load_policy import load_policy
from jaxsrl.plan.passes.for_agent import plan_for_agent
from jaxsrl.plan.passes.learner_processes import shares_of
from jaxsrl.plan.plan import Plan, plan_to_json
from jaxsrl.training.preflight import check_run


@dataclasses.dataclass(frozen=True)
class PlannedExperiment:
    """A valid plan and what it takes.

    Attributes:
        plan: valid on `resources`.
        resources: that it was made for.
        sizes: bytes of its channels and slots.
        processes: that learn together.
    """

    plan: Plan
    resources: Resources
    sizes: PlanBytes
    processes: int = 1

    def to_json(self) -> dict[str, Any]:
        """`plan_to_json`, with "bytes" beside it: of the channels in their order, of slots and of parameters.

        On a cluster also "between_nodes", see BytesBetweenNodes; of several learner processes "processes", see ProcessShare.
        """
        found = {**plan_to_json(self.plan), "bytes": dataclasses.asdict(self.sizes)}
        if self.plan.environments.nodes:
            found["between_nodes"] = dataclasses.asdict(bytes_between_nodes(self.plan, self.sizes))
        if self.processes > 1:
            found["processes"] = [dataclasses.asdict(share) for share in shares_of(self.plan, self.processes)]
        return found


def plan_experiment(path: Path, flags: Sequence[str], cores: int = 0, gpus: int = 0) -> PlannedExperiment:
    """What a run of this file with these flags would be; no environment process starts.

    Args:
        path: a Python file with an `Experiment` dataclass and a `main(experiment)`, as those in `experiments/`.
        flags: of the experiment's command line.
        cores: processor cores to plan for; 0 for those of this machine.
        gpus: devices of platform "gpu" to plan for; 0 for the devices of this machine.

    Raises:
        UserError: the file is no experiment, or what it asks for cannot run on these resources.
        SystemExit: the flags cannot be parsed, or are --help.
    """
    for name, number in (("cores", cores), ("gpus", gpus)):
        if number < 0:
            raise UserError(f"--{name} must not be negative: got {number}; leave it out for this machine")
    composed = compose(path, flags)
    resources = _resources(cores, gpus)
    agent, spec, config = composed.agent, composed.spec, composed.config
    plan = plan_for_agent(load_policy(config.policy)(config, resources), agent, config.replay_place)
    processes = config.distributed.num_processes if config.distributed.is_on else 1
    with contextlib.ExitStack() as held:
        several = processes != 1
        place = (
            planned_together(config, plan, resources)
            if several
            else held.enter_context(place_of(config, plan, resources, kept_bytes(config, agent, spec)))
        )
        plan, resources = place.plan, place.resources
    check_run(plan, agent, composed.source, spec, resources)
    replay = replay_bytes(agent, spec, plan.num_rows, plan.shape.rollout_length)
    sizes = bytes_of_plan(plan, agent_layout(spec, plan.shape, agent), params_bytes_of(agent), replay)
    return PlannedExperiment(plan, resources, sizes, processes)


def compose(path: Path, flags: Sequence[str]) -> Composed:
    """What the file's `main` hands to `train_and_evaluate`.

    Raises:
        UserError: no such file, no `Experiment` or `main` in it, or `main` ends without training.
    """
    module = import_file(path, "experiment")
    missing = [name for name in ("Experiment", "main") if not hasattr(module, name)]
    if missing:
        raise UserError(
            f"{path} has no {' and no '.join(missing)}: expected an experiment like those in experiments/, "
            f"with a dataclass Experiment and a function main(experiment)"
        )
    try:
        with skip_training():
            launch(module.main, module.Experiment, module.__doc__, flags)
    except TrainingSkippedError as skipped:
        return skipped.composed
    raise UserError(f"{path}: main ended without jaxsrl.experiment.train_and_evaluate, so there is no plan to show")


def _resources(cores: int, gpus: int) -> Resources:
    """Those of this machine with what is asked for in its place; another machine's shared memory is not known."""
    found = Resources.detect()
    if cores:
        found = dataclasses.replace(found, num_cores=cores, shared_memory_bytes=None, host_memory_bytes=None)
    if gpus:
        found = dataclasses.replace(found, platform="gpu", num_devices=gpus, name="")
        found = dataclasses.replace(found, shared_memory_bytes=None, host_memory_bytes=None, device_memory_bytes=None)
    return found
