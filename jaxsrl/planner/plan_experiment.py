"""Plan of an experiment, without training: the data of `jaxsrl plan`."""

import dataclasses
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.cluster.placement import preview_placement
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.experiment import Experiment
from jaxsrl.learner.learning_agent import kept_bytes, replay_bytes
from jaxsrl.machine.resources import Resources
from jaxsrl.machine.split_cpu import set_num_cpu_devices
from jaxsrl.plan.cost.channel_bytes import PlanBytes, bytes_between_nodes, bytes_of_plan, params_bytes_of
from jaxsrl.plan.load_plan import make_plan
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.passes.learner_processes import shares_of
from jaxsrl.plan.plan import Plan, plan_to_json
from jaxsrl.run_plan import check_options
from jaxsrl.training.preflight import check_run
from jaxsrl.training.stop_rules import with_gradient_budget


@dataclasses.dataclass(frozen=True)
class PlannedExperiment:
    """A valid plan and its sizes.

    Attributes:
        plan: valid on `resources`.
        resources: Resources for which it was made.
        sizes: bytes of its channels and slots.
        processes: number of learner processes.
    """

    plan: Plan
    resources: Resources
    sizes: PlanBytes
    processes: int = 1

    def to_json(self) -> dict[str, Any]:
        """Returns `plan_to_json` with an entry "bytes": of the channels in their order, of slots and of parameters.

        On a cluster also "between_nodes", see BytesBetweenNodes; of several learner processes "processes", see ProcessShare.
        """
        data = {**plan_to_json(self.plan), "bytes": dataclasses.asdict(self.sizes)}
        if not self.plan.is_offline and self.plan.environments.nodes:
            data["between_nodes"] = dataclasses.asdict(bytes_between_nodes(self.plan, self.sizes))
        if self.processes > 1:
            data["processes"] = [dataclasses.asdict(share) for share in shares_of(self.plan, self.processes)]
        return data


def plan_experiment(experiment: Experiment, cores: int = 0, gpus: int = 0) -> PlannedExperiment:
    """Returns the plan that a run of this experiment would have. No environment process starts.

    Args:
        experiment: Experiment to plan.
        cores: processor cores to plan for; 0 for those of this machine.
        gpus: devices of platform "gpu" to plan for; 0 for the devices of this machine.

    Raises:
        UserError: If the experiment cannot run on these resources.
    """
    for name, number in (("cores", cores), ("gpus", gpus)):
        if number < 0:
            raise UserError(f"--{name} must not be negative: got {number}; omit it for this machine")
    if experiment.run.machine.num_cpu_devices:
        set_num_cpu_devices(experiment.run.machine.num_cpu_devices)
    agent, source, spec = experiment.build()
    config = with_gradient_budget(experiment.run, agent)
    resources = _resources(cores, gpus)
    plan = add_agent_fragments(make_plan(config, resources, agent), agent, config.replay)
    processes = config.distributed.num_processes if config.distributed.is_on else 1
    placement = preview_placement(config, plan, resources, kept_bytes(config, agent, spec))
    plan, resources = placement.plan, placement.resources
    check_run(plan, agent, source, spec, resources)
    check_options(config, plan, agent, source, spec)
    replay = replay_bytes(agent, spec, plan.num_rows, plan.shape.rollout_length)
    sizes = bytes_of_plan(plan, agent_layout(spec, plan.shape, agent), params_bytes_of(agent), replay)
    return PlannedExperiment(plan, resources, sizes, processes)


def _resources(cores: int, gpus: int) -> Resources:
    """Returns this machine's resources with other cores and GPUs; another machine's shared memory is not known."""
    resources = Resources.detect()
    if cores or gpus:
        cores = cores or resources.num_cores
        resources = dataclasses.replace(resources, num_cores=cores, shared_memory_bytes=None, host_memory_bytes=None)
    if gpus:
        resources = dataclasses.replace(resources, platform="gpu", num_devices=gpus, name="", device_memory_bytes=None)
    return resources
