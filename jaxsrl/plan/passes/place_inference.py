"""Plans whose environment hosts ask inference servers on other nodes for actions. Arithmetic only."""

from collections import Counter
from collections.abc import Sequence

from envpool_bridge.errors import UserError
from jaxsrl.machine.resources import Node
from jaxsrl.plan.fragment import Carries, Devices, FragmentKind, Processes, Transport
from jaxsrl.plan.passes.place_hosts import cores_of_hosts
from jaxsrl.plan.plan import Plan

CORES_OF_SERVER = 1
"""That an inference server asks its node for."""


def call_servers(plan: Plan) -> Plan:
    """Returns the plan with acting asked for call by call, so that servers need not be where environments are.

    Args:
        plan: Plan for one machine; `place_hosts` and `place_servers` come next.

    Raises:
        UserError: If its environments do not ask anybody, or its servers cannot be elsewhere.
    """
    where = f"plan {plan.name} with --cluster.num-inference-servers"
    if not isinstance(plan.environments.placement, Processes) or isinstance(plan.inference.placement, Processes):
        raise UserError(
            f"{where}: fragment {plan.inference.name} acts where its environments are: use --plan decoupled or "
            f"single_learner_fine, whose environment processes ask a server"
        )
    return plan.with_channels((Carries.OBSERVATIONS, Carries.ACTIONS), transport=Transport.CALLS)


def place_servers(
    plan: Plan, nodes: Sequence[Node], num_servers: int, processes: int = 1, may_use_gpus: bool = True
) -> Plan:
    """Returns the plan with its acting at inference servers, on the nodes with GPUs if these have enough of them.

    Args:
        plan: Plan of `call_servers`, on nodes.
        nodes: Nodes of the cluster.
        num_servers: Number of servers that share the lanes of all hosts, in order.
        processes: Processes that learn, each with as many of the servers, which act for the lanes of its own hosts.
        may_use_gpus: whether servers act on GPUs where there are enough.

    Raises:
        UserError: If the servers do not divide over the processes, the lanes not over the servers, or there are too few cores.
    """
    _require_shares(plan, num_servers, processes)
    used = cores_of_hosts(plan)
    on_gpus = may_use_gpus and sum(node.num_gpus for node in nodes) >= num_servers
    at: list[str] = []
    for server in range(num_servers):
        name = _choose_node(nodes, used, Counter(at) if on_gpus else None, server, num_servers)
        used[name] += CORES_OF_SERVER
        at.append(name)
    placement = Devices((0,), "gpu" if on_gpus else "cpu")
    return plan.with_nodes({FragmentKind.INFERENCE}, at, replicas=num_servers, placement=placement)


def _choose_node(
    nodes: Sequence[Node], used: Counter[str], gpus_taken: Counter[str] | None, server: int, of: int
) -> str:
    """Returns the node of one server: with the most GPUs left where it wants one, then with the most cores left.

    Args:
        nodes: Nodes to choose from.
        used: cores that are taken, by node.
        gpus_taken: GPUs that are taken, by node; None where servers act on processors.
        server: Number of the server, for messages.
        of: number of servers.

    Raises:
        UserError: If there are too few cores, or no GPU is left.
    """
    left = {node.name: node.num_cores - used[node.name] for node in nodes}
    gpus = {node.name: node.num_gpus - (gpus_taken or Counter())[node.name] for node in nodes}
    able = [name for name in left if left[name] >= CORES_OF_SERVER and (gpus_taken is None or gpus[name] > 0)]
    if not able:
        sizes = ", ".join(f"{node.name}: {node.num_cores} and {node.num_gpus}" for node in nodes) or "there are none"
        wanted = "a core" if gpus_taken is None else "a core and a GPU"
        raise UserError(
            f"no node has {wanted} left for inference server {server} of {of} (cores and GPUs of the nodes: {sizes}): use fewer "
            f"--pool.num-workers or --cluster.num-inference-servers, or add nodes"
        )
    return max(able, key=lambda name: (gpus[name] if gpus_taken is not None else 0, left[name]))


def lanes_of_server(plan: Plan, server: int) -> range:
    """Returns the lanes that a server acts for: numbered over all hosts, in order."""
    each = plan.shape.num_lanes * plan.environments.replicas // plan.inference.replicas
    return range(server * each, (server + 1) * each)


def server_of_lane(plan: Plan, lane: int) -> int:
    """Returns the server that acts for a lane, numbered over all hosts."""
    return lane // len(lanes_of_server(plan, 0))


def servers_of_hosts(plan: Plan, hosts: range) -> range:
    """Returns the servers that act for the lanes of these environment hosts."""
    lanes = plan.shape.num_lanes
    return range(server_of_lane(plan, hosts.start * lanes), server_of_lane(plan, hosts.stop * lanes - 1) + 1)


def _require_shares(plan: Plan, num_servers: int, processes: int) -> None:
    """Rejects servers that would act for hosts of two processes, or for parts of lanes.

    Raises:
        UserError: If the number does not fit; the message has one that does.
    """
    hosts = plan.environments.replicas
    lanes, where = plan.shape.num_lanes * hosts, f"plan {plan.name} on a cluster"
    advice = "use --cluster.num-inference-servers "
    advice += str(_divisor(max(1, lanes // processes), max(1, round(num_servers / processes))) * processes)
    if num_servers % processes:
        raise UserError(
            f"{where}: {num_servers} inference servers do not divide over {processes} learner processes, each with its own: "
            f"{advice}, or 0, with which every host acts for its own rows"
        )
    if lanes % num_servers:
        raise UserError(
            f"{where}: {lanes} lanes of {hosts} hosts do not divide over {num_servers} inference servers: {advice}"
        )


def _divisor(lanes: int, wanted: int) -> int:
    """Returns the divisor of `lanes` nearest to what was wanted."""
    return min((number for number in range(1, lanes + 1) if lanes % number == 0), key=lambda one: abs(one - wanted))
