"""Plans whose experience is kept on a node of a cluster of its own choice. Arithmetic only."""

import dataclasses
from collections.abc import Sequence

from envpool_bridge.errors import UserError
from jaxsrl.machine.resources import Node
from jaxsrl.plan.fragment import Carries, FragmentKind, InProcess, Processes, Transport
from jaxsrl.plan.passes.place_hosts import cores_of_hosts, format_node
from jaxsrl.plan.passes.place_inference import CORES_OF_SERVER
from jaxsrl.plan.plan import Plan
from jaxsrl.terminal.format import format_bytes

CORES_OF_REPLAY = 1
"""That replay asks its node for."""

SAMPLES_AHEAD = 4
"""Calls for samples that a learner has open: its credits."""


def place_replay(plan: Plan, nodes: Sequence[Node], num_bytes: int = 0) -> Plan:
    """Returns the plan with its experience on the node that has most room left for it, best one without an environment host.

    Args:
        plan: Plan on nodes, servers included.
        nodes: Nodes of the cluster.
        num_bytes: Number of bytes of the experience, when all of it is there; 0 where that is not known.

    Raises:
        UserError: If the plan keeps none, or keeps it on devices, or no node has a core and the memory.
    """
    where = f"plan {plan.name} with --replay.memory cluster"
    if plan.replay is None:
        raise UserError(
            f"{where}: the agent learns from each trajectory once and stores none: omit --replay.memory cluster, or use an "
            f"agent that learns from replay (dqn, ...)"
        )
    if not isinstance(plan.replay.placement, InProcess | Processes):
        raise UserError(
            f"{where}: fragment {plan.replay.name} is on devices of the learner: omit --replay.memory cluster, or use a --plan "
            f"that does not place replay itself"
        )
    node = _node_with_room(plan, nodes, num_bytes, where)
    plan = plan.with_channels((Carries.SAMPLES, Carries.PRIORITIES), transport=Transport.OBJECT_STORE)
    plan = plan.with_channels((Carries.SAMPLES,), capacity=SAMPLES_AHEAD)
    return plan.with_nodes({FragmentKind.REPLAY}, [node], placement=Processes(1))


def _node_with_room(plan: Plan, nodes: Sequence[Node], num_bytes: int, where: str) -> str:
    used = cores_of_hosts(plan)
    for name in plan.inference.nodes if plan.calls_servers else ():
        used[name] += CORES_OF_SERVER
    able = [
        node
        for node in nodes
        if node.num_cores - used[node.name] >= CORES_OF_REPLAY
        and (node.memory_bytes is None or node.memory_bytes >= num_bytes)
    ]
    if not able:
        left = [dataclasses.replace(node, num_cores=node.num_cores - used[node.name]) for node in nodes]
        sizes = ", ".join(format_node(node, with_memory=True) for node in left) or "there are none"
        raise UserError(
            f"{where}: no node has a core left and {format_bytes(num_bytes)} of memory for replay ({sizes}): use a smaller "
            f"--agent.replay.capacity, fewer --pool.num-workers, or add nodes (ray start --memory says how much one gives out)"
        )
    # The first of those that are alike.
    best = max(able, key=lambda node: (node.name not in used, node.memory_bytes or 0, node.num_cores - used[node.name]))
    return best.name
