"""Plans on several nodes: which environment host is where. Arithmetic only."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from envpool_bridge.errors import UserError
from jaxsrl.machine.resources import Node
from jaxsrl.plan.fragment import Carries, Channel, Devices, Fragment, FragmentKind, Processes, Transport, WhenFull
from jaxsrl.plan.plan import Plan, nearest_multiple
from jaxsrl.terminal.format import format_bytes

Spreading = Literal["spread", "pack", "strict_spread", "strict_pack"]

SPREADING_TEXT = {
    "spread": "on as many nodes as possible",
    "pack": "on as few nodes as possible",
    "strict_spread": "each on a node of its own",
    "strict_pack": "all on one node",
}

SPREADING_ADVICE = {
    "strict_spread": "--cluster.placement spread",
    "strict_pack": "--cluster.placement pack",
}


def place_hosts(plan: Plan, nodes: Sequence[Node], num_hosts: int, spreading: Spreading = "spread") -> Plan:
    """Returns the same run with its environments, and acting for them, at environment hosts on these nodes.

    Rows and workers are divided evenly; whole slots and versions of the parameters cross the network, and nothing else. A policy
    that acted on the learner's devices acts on the processor of each host instead.

    Args:
        plan: Plan with environments in processes.
        nodes: Nodes to use.
        num_hosts: environment hosts; several may be on one node.
        spreading: Spreading of the hosts over nodes.

    Raises:
        UserError: If the plan has nothing that could be elsewhere, does not divide, or the nodes have too few cores.
    """
    where = f"plan {plan.name} on a cluster"
    environments = plan.environments
    if not isinstance(environments.placement, Processes):
        raise UserError(
            f"{where}: fragment {environments.name} is in the learner's own process: use a --plan with environment "
            f"processes (single_learner_coarse, single_learner_fine, ...)"
        )
    for channel in plan.channels:
        _require_sendable(where, channel)
    workers = plan.shape.num_workers * environments.replicas
    per_lane = plan.shape.workers_per_lane
    if workers % num_hosts or workers // num_hosts % per_lane:
        wanted = nearest_multiple(workers, num_hosts * per_lane)
        raise UserError(
            f"{where}: {workers} environment workers do not divide over {num_hosts} hosts: use --pool.num-workers {wanted}"
        )
    shape = dataclasses.replace(plan.shape, num_workers=workers // num_hosts)
    placed = dataclasses.replace(plan, shape=shape)
    at = preferred_nodes(nodes, num_hosts, cores_of_host(placed), spreading)
    fragments = tuple(_at_hosts(fragment, at, shape.num_workers) for fragment in plan.fragments)
    moved = {fragment.name for fragment in fragments if fragment.nodes}
    # A channel with one end at the hosts goes through the cluster's object store.
    channels = tuple(
        dataclasses.replace(one, transport=Transport.OBJECT_STORE)
        if (one.source in moved) != (one.target in moved)
        else one
        for one in plan.channels
    )
    return dataclasses.replace(placed, fragments=fragments, channels=channels)


def cores_of_host(plan: Plan) -> int:
    """Returns cores that an environment host asks its node for: one a worker, and one for a server that acts for them there."""
    acts_there = not isinstance(plan.inference.placement, Processes) and not plan.calls_servers
    return plan.shape.num_workers + int(acts_there)


def cores_of_hosts(plan: Plan) -> Counter[str]:
    """Returns the cores of each node that its environment hosts take."""
    return Counter({name: hosts * cores_of_host(plan) for name, hosts in Counter(plan.environments.nodes).items()})


def assign_nodes(nodes: Sequence[Node], num_hosts: int, cores: int) -> tuple[str, ...]:
    """Returns the node of each host: of those with room the one with the fewest hosts, then the most cores left, then the first.

    Args:
        nodes: Nodes to choose from.
        num_hosts: how many.
        cores: Cores that each takes.

    Raises:
        UserError: If there are too few cores.
    """
    left = {node.name: node.num_cores for node in nodes}
    chosen: list[str] = []
    for host in range(num_hosts):
        with_room = [name for name in left if left[name] >= cores]
        if not with_room:
            sizes = ", ".join(f"{node.name}: {node.num_cores}" for node in nodes) or "there are none"
            raise UserError(
                f"no node has {cores} cores left for environment host {host} of {num_hosts} (cores of the nodes: {sizes}): use "
                f"fewer --pool.num-workers, or add nodes"
            )
        name = min(with_room, key=lambda one: (chosen.count(one), -left[one]))
        left[name] -= cores
        chosen.append(name)
    return tuple(chosen)


def _require_sendable(where: str, channel: Channel) -> None:
    if channel.when_full is WhenFull.DROP_OLDEST:
        raise UserError(
            f"{where}: channel {channel.source} -> {channel.target} drops its oldest, which hosts cannot: use "
            f"--learner.when-full block"
        )
    if channel.carries is Carries.GRADIENTS and not channel.synchronous:
        raise UserError(
            f"{where}: asynchronous replicas need environments of their own on this machine: use --learner.gradients synchronous"
        )


def _at_hosts(fragment: Fragment, at: tuple[str, ...], workers: int) -> Fragment:
    if fragment.kind not in (FragmentKind.ENVIRONMENT, FragmentKind.INFERENCE):
        return fragment
    in_processes = isinstance(fragment.placement, Processes)
    placement = Processes(workers) if in_processes else Devices((0,), "cpu")
    return dataclasses.replace(fragment, replicas=len(at), placement=placement, nodes=at)


def preferred_nodes(nodes: Sequence[Node], hosts: int, cores: int, spreading: Spreading) -> tuple[str, ...]:
    """Returns the node of each host as an empty cluster would have it; a cluster decides for itself.

    Raises:
        UserError: not even an empty cluster has room.
    """
    if spreading == "spread":
        return assign_nodes(nodes, hosts, cores)
    room = {node.name: node.num_cores // cores for node in nodes}
    if spreading == "strict_spread":
        chosen = [name for name in room if room[name] > 0][:hosts]
    elif spreading == "strict_pack":
        chosen = [name for name in room if room[name] >= hosts][:1] * hosts
    else:
        chosen = [name for name in sorted(room, key=lambda one: -room[one]) for _ in range(room[name])][:hosts]
    if len(chosen) < hosts:
        sizes = ", ".join(format_node(node, False) for node in nodes) or "no nodes"
        advice = SPREADING_ADVICE.get(spreading, "larger nodes")
        raise UserError(
            f"{hosts} environment hosts of {cores} cores each, {SPREADING_TEXT[spreading]}, do not fit into a cluster with "
            f"{sizes}: add nodes, use fewer --pool.num-workers or --cluster.num-hosts, or {advice}"
        )
    return tuple(chosen)


def with_hosts_on(plan: Plan, nodes: Sequence[str]) -> Plan:
    """Returns the plan with its environment hosts, and what acts at them, on these nodes instead."""
    environment = {FragmentKind.ENVIRONMENT}
    return plan.with_nodes(environment if plan.calls_servers else environment | {FragmentKind.INFERENCE}, nodes)


def format_node(node: Node, with_memory: bool, with_gpus: bool = False) -> str:
    """Returns a node's name and cores, and its free memory and GPUs on request, for a message."""
    memory = f" and {format_bytes(node.memory_bytes)}" if with_memory and node.memory_bytes is not None else ""
    gpus = f" and {node.num_gpus} GPUs" if with_gpus else ""
    return f"{node.name}: {node.num_cores} cores{memory}{gpus}"
