"""Which nodes of a cluster a plan runs on, and how many environment hosts it has."""

from collections.abc import Sequence

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.learner_processes import learners_over
from jaxsrl.plan.passes.place_hosts import cores_of_host, plan_on_nodes, preferred_nodes, with_hosts_on
from jaxsrl.plan.passes.place_inference import call_servers, place_servers
from jaxsrl.plan.passes.place_replay import CORES_OF_REPLAY, place_replay
from jaxsrl.plan.plan import Plan, nearest_multiple

_LOCAL_NODES = 2

_SPARE = 2  # hosts that a local node says it has room for: so that the others can take over when one is lost


def local_nodes(config: RunConfig, plan: Plan, processes: int = 1) -> tuple[Node, ...]:
    """Returns the nodes of the cluster that `--run.cluster local` starts: one a host."""
    hosts = num_hosts(config, max(_LOCAL_NODES, processes), processes)
    names = [f"node{number + 1}" for number in range(hosts)]
    trial = plan_on_nodes(plan, [Node(name, config.num_env_workers + 1) for name in names], hosts)
    cores = cores_of_host(trial) * (hosts if config.cluster_placement == "strict_pack" else _SPARE)
    beside = config.cluster_inference_servers + CORES_OF_REPLAY * config.cluster_replay
    return tuple(Node(name, cores + beside) for name in names)


def num_hosts(config: RunConfig, by_default: int, processes: int = 1) -> int:
    """Returns environment hosts of a run: as many for each learner process.

    Raises:
        UserError: they do not divide over the learner processes.
    """
    if not config.cluster_nodes:
        return max(1, by_default // processes) * processes
    if config.cluster_nodes % processes:
        raise UserError(
            f"{config.cluster_nodes} environment hosts do not divide over {processes} learner processes: use --run.cluster-nodes "
            f"{nearest_multiple(config.cluster_nodes, processes)}"
        )
    return config.cluster_nodes


def placed_plan(
    config: RunConfig, plan: Plan, nodes: Sequence[Node], hosts: int, processes: int = 1, kept_bytes: int = 0
) -> Plan:
    """Returns the plan with its hosts where a cluster of these nodes, if it were empty, would have them.

    Args:
        config: of the run.
        plan: for one machine.
        nodes: of the cluster.
        hosts: of environments.
        processes: that learn.
        kept_bytes: of the experience that is to be kept on a node.

    Raises:
        UserError: the plan cannot be on a cluster, or not on this one.
    """
    servers = config.cluster_inference_servers
    placed = plan_on_nodes(call_servers(plan) if servers else plan, nodes, hosts)
    placed = with_hosts_on(placed, preferred_nodes(nodes, hosts, cores_of_host(placed), config.cluster_placement))
    may_use_gpus = config.inference_platform != "cpu"
    placed = place_servers(placed, nodes, servers, processes, may_use_gpus) if servers else placed
    return place_replay(placed, nodes, kept_bytes) if config.cluster_replay else placed


def place_over_processes(
    config: RunConfig, plan: Plan, nodes: Sequence[Node], processes: int, resources: Resources
) -> Plan:
    """Returns the plan with hosts on these nodes, and learning on devices of every process."""
    placed = placed_plan(config, plan, nodes, num_hosts(config, len(nodes), processes), processes=processes)
    return learners_over(placed, processes, resources.num_devices)
