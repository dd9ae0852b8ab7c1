"""A plan over several processes: every process runs the environments and the inference of its share of the rows."""

import dataclasses

from envpool_bridge.errors import UserError
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Carries, Devices, FragmentKind, Processes, WhenFull
from jaxsrl.plan.passes.place_inference import servers_of_hosts
from jaxsrl.plan.plan import Plan, nearest_multiple


def split_over_processes(plan: Plan, processes: int, devices_each: int) -> Plan:
    """Returns the plan with a replica of environments and inference for each process, or a multiple; rows stay in order.

    Args:
        plan: Plan of the whole run; its devices count from 0 over all processes.
        processes: Processes that learn.
        devices_each: Number of devices of each process.

    Returns:
        A plan whose devices are numbered by process: process p has `p * devices_each` and those after it.

    Raises:
        UserError: this plan cannot run in several processes, or something does not divide.
    """
    if processes == 1:
        return plan
    devices = _devices_over(plan, processes, devices_each, on_cluster=False)
    replicas = plan.environments.replicas
    shape = plan.shape
    if replicas == 1:
        replicas = processes
        group = processes * shape.workers_per_lane
        if shape.num_workers % group:
            raise UserError(
                f"plan {plan.name}: fragment {plan.environments.name}: {shape.num_workers} workers do not divide over "
                f"{processes} processes: use --pool.num-workers {nearest_multiple(shape.num_workers, group)}"
            )
        shape = dataclasses.replace(shape, num_workers=shape.num_workers // processes)
    elif replicas % processes:
        raise UserError(
            f"plan {plan.name}: fragment {plan.environments.name}: {replicas} replicas do not divide over {processes} "
            f"processes: use --learner.num-devices {nearest_multiple(replicas, processes)}"
        )
    acting = devices if plan.environments.replicas > 1 else tuple(p * devices_each for p in range(processes))
    changes = {
        FragmentKind.ENVIRONMENT: {
            "replicas": replicas,
            "placement": dataclasses.replace(plan.environments.placement, count=shape.num_workers),
        },
        FragmentKind.INFERENCE: {"replicas": replicas, "placement": Devices(acting)},
        FragmentKind.LEARNER: {"placement": Devices(devices)},
    }
    fragments = tuple(dataclasses.replace(one, **changes[one.kind]) for one in plan.fragments)
    plan = plan.with_channels((Carries.OBSERVATIONS, Carries.ACTIONS), capacity=shape.num_lanes)
    return dataclasses.replace(plan, fragments=fragments, shape=shape)


def split_learner(plan: Plan, processes: int, devices_each: int) -> Plan:
    """Returns a plan whose environments are at hosts of a cluster, with devices of every process that learn; hosts stay in order.

    Args:
        plan: Plan with as many hosts, and inference servers that these call, for each process; it may have been for one process.
        processes: Processes that learn.
        devices_each: Number of devices of each process.

    Returns:
        A plan whose devices are numbered by process, as `split_over_processes` has them.

    Raises:
        UserError: this plan cannot run in several processes, or something does not divide.
    """
    if processes == 1:
        return plan
    devices = _devices_over(plan, processes, devices_each, on_cluster=True)
    if plan.environments.replicas % processes:
        raise UserError(
            f"plan {plan.name}: {plan.environments.replicas} environment hosts do not divide over {processes} learner processes: "
            f"use --cluster.num-hosts {nearest_multiple(plan.environments.replicas, processes)}"
        )
    if plan.calls_servers and plan.inference.replicas % processes:
        raise UserError(
            f"plan {plan.name}: {plan.inference.replicas} inference servers do not divide over {processes} learner processes: "
            f"use --cluster.num-inference-servers {nearest_multiple(plan.inference.replicas, processes)}"
        )
    learner = plan.learner
    learning = dataclasses.replace(learner, placement=Devices(devices))
    return dataclasses.replace(plan, fragments=tuple(learning if one is learner else one for one in plan.fragments))


def resources_over(resources: Resources, processes: int) -> Resources:
    """Returns the resources of all processes together, each with as many as this one."""
    memory = resources.shared_memory_bytes
    return dataclasses.replace(
        resources,
        num_devices=resources.num_devices * processes,
        shared_memory_bytes=None if memory is None else memory * processes,
    )


def replicas_of(plan: Plan, process: int, processes: int) -> range:
    """Returns the replicas of environments, and of inference next to them, that a process runs."""
    share = plan.environments.replicas // processes
    return range(process * share, (process + 1) * share)


def servers_of(plan: Plan, process: int, processes: int) -> range:
    """Returns the inference servers of a cluster that a process has, for its own hosts; none where these act themselves."""
    return servers_of_hosts(plan, replicas_of(plan, process, processes)) if plan.calls_servers else range(0)


@dataclasses.dataclass(frozen=True)
class ProcessShare:
    """The share of a learner process in a run.

    Attributes:
        process: Id of the process.
        devices: Devices that learn, counted over all processes.
        rows: first and last of the run.
        replicas: Replicas of the environments: pools at the process itself, or hosts on a cluster.
        nodes: Nodes of the cluster, one a host; () without one.
        servers: inference servers on the cluster that act for these hosts; () where they act themselves.
        server_nodes: Nodes of the servers, one each.
    """

    process: int
    devices: tuple[int, ...]
    rows: tuple[int, int]
    replicas: tuple[int, ...]
    nodes: tuple[str, ...]
    servers: tuple[int, ...] = ()
    server_nodes: tuple[str, ...] = ()


def shares_of(plan: Plan, processes: int) -> tuple[ProcessShare, ...]:
    """Returns the share of each process in a plan for several processes, in order of their ids."""
    placement = plan.learner.placement
    devices = placement.indices if isinstance(placement, Devices) else ()
    each = len(devices) // processes
    shares: list[ProcessShare] = []
    for process in range(processes):
        replicas = replicas_of(plan, process, processes)
        rows = (replicas.start * plan.shape.num_rows, replicas.stop * plan.shape.num_rows - 1)
        nodes = plan.environments.nodes[replicas.start : replicas.stop]
        mine = devices[process * each : (process + 1) * each]
        servers = servers_of(plan, process, processes)
        at = plan.inference.nodes[servers.start : servers.stop]
        shares.append(ProcessShare(process, mine, rows, tuple(replicas), nodes, tuple(servers), at))
    return tuple(shares)


def _devices_over(plan: Plan, processes: int, devices_each: int, on_cluster: bool) -> tuple[int, ...]:
    """Returns the devices that learn, numbered by process; rejects a plan that one process must run."""
    reasons = _reasons(plan, on_cluster)
    if reasons or len(plan.learners) != 1 or not isinstance(plan.learner.placement, Devices):
        raise UserError(
            f"plan {plan.name} cannot run in several learner processes: {', and '.join(reasons) or 'no device learns'}; "
            f"use --plan multiple_learners or single_learner_fine with --learner.when-full block, or one process"
        )
    where, number = f"plan {plan.name}: fragment {plan.learner.name}", len(plan.learner.placement.indices)
    if number % processes:
        raise UserError(
            f"{where}: {number} devices, counted over all processes, do not divide over {processes} processes: use "
            f"--learner.num-devices {nearest_multiple(number, processes)}"
        )
    share = number // processes
    if share > devices_each:
        raise UserError(
            f"{where} wants {share} devices of each process, which has {devices_each}: use --learner.num-devices "
            f"{devices_each * processes} or less"
        )
    return tuple(process * devices_each + index for process in range(processes) for index in range(share))


def _reasons(plan: Plan, on_cluster: bool) -> list[str]:
    """Returns why one process must run this plan; [] if several can. Hosts of a cluster always act themselves."""
    reasons = {
        "its environments run in the main process or on devices": not isinstance(
            plan.environments.placement, Processes
        ),
        "it keeps experience for replay": plan.replay is not None,
        "it has a parameter server": plan.parameter_server is not None,
        "its policies have learners of their own": len(plan.learners) > 1,
        "it drops trajectories": any(one.when_full is WhenFull.DROP_OLDEST for one in plan.channels),
        "inference has devices of its own": plan.name == "decoupled",
    }
    if not on_cluster:
        of_a_platform = isinstance(plan.inference.placement, Devices) and bool(plan.inference.placement.platform)
        reasons["its actors hold the policy"] = isinstance(plan.inference.placement, Processes)
        reasons["inference has a platform of its own"] = of_a_platform
    return [reason for reason, holds in reasons.items() if holds]
