"""The passes over a plan, in the order in which they are applied: fragments of the agent, then nodes, then learner processes."""

from collections.abc import Sequence

from agents.api import AnyAgent
from envpool_bridge.errors import UserError
from jaxsrl.config.parts import ReplayMemoryConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.learner_processes import split_learner, split_over_processes
from jaxsrl.plan.passes.place_hosts import cores_of_host, place_hosts
from jaxsrl.plan.passes.place_inference import call_servers, place_servers
from jaxsrl.plan.passes.place_replay import CORES_OF_REPLAY, place_replay
from jaxsrl.plan.passes.policy_groups import plan_with_groups
from jaxsrl.plan.passes.prepare import plan_with_prepare
from jaxsrl.plan.passes.replay import plan_with_replay
from jaxsrl.plan.plan import Plan, nearest_multiple

_LOCAL_NODES = 2

_SPARE = 2  # hosts that a local node says it has room for: so that the others can take over when one is lost


def local_nodes(config: RunConfig, plan: Plan, processes: int = 1) -> tuple[Node, ...]:
    """Returns the nodes of the cluster that `--cluster.address local` starts: one a host."""
    hosts = num_hosts(config, max(_LOCAL_NODES, processes), processes)
    names = [f"node{number + 1}" for number in range(hosts)]
    trial = place_hosts(plan, [Node(name, config.pool.num_workers + 1) for name in names], hosts)
    cores = cores_of_host(trial) * (hosts if config.cluster.placement == "strict_pack" else _SPARE)
    others = config.cluster.num_inference_servers + CORES_OF_REPLAY * config.replay.is_remote
    return tuple(Node(name, cores + others) for name in names)


def num_hosts(config: RunConfig, by_default: int, processes: int = 1) -> int:
    """Returns environment hosts of a run: as many for each learner process.

    Raises:
        UserError: If they do not divide over the learner processes.
    """
    if not config.cluster.num_hosts:
        return max(1, by_default // processes) * processes
    if config.cluster.num_hosts % processes:
        raise UserError(
            f"{config.cluster.num_hosts} environment hosts do not divide over {processes} learner processes: use "
            f"--cluster.num-hosts {nearest_multiple(config.cluster.num_hosts, processes)}"
        )
    return config.cluster.num_hosts


def add_agent_fragments(plan: Plan, agent: AnyAgent, replay: ReplayMemoryConfig | None = None) -> Plan:
    """Returns the plan with the fragments that this agent needs: learners of its policies, replay, preparation of samples.

    Args:
        plan: Plan of a planning function, which knows no agent.
        agent: Agent to train.
        replay: memory of the replay, unless the plan places replay itself, and devices that prepare samples; None for the defaults.

    Raises:
        UserError: If the plan has no place for them.
    """
    replay = replay or ReplayMemoryConfig()
    on_host = replay.memory != "device"  # `place_replay` moves that of a cluster from here to another node
    replaying = plan_with_replay(plan_with_groups(plan, agent), agent, on_host)
    return plan_with_prepare(replaying, agent, replay.prepare_devices, replay.prepare_lag)


def place_plan(
    config: RunConfig,
    plan: Plan,
    nodes: Sequence[Node],
    resources: Resources,
    processes: int = 1,
    replay_bytes: int = 0,
) -> Plan:
    """Returns the plan on the nodes of a cluster, if there is one, and over the learner processes.

    Args:
        config: Configuration of the run.
        plan: Plan with the fragments of the agent.
        nodes: Nodes of the cluster; () for a run on this machine.
        resources: Resources of one learner process.
        processes: number of learner processes.
        replay_bytes: size of the replay that a node is to hold.

    Raises:
        UserError: If the plan cannot be placed so.
    """
    if not nodes:
        return split_over_processes(plan, processes, resources.num_devices)
    placed = place_on_nodes(config, plan, nodes, num_hosts(config, len(nodes), processes), processes, replay_bytes)
    return split_learner(placed, processes, resources.num_devices)


def place_on_nodes(
    config: RunConfig, plan: Plan, nodes: Sequence[Node], hosts: int, processes: int = 1, replay_bytes: int = 0
) -> Plan:
    """Returns the plan with hosts, inference servers and replay on the nodes that an empty cluster would give them.

    Args:
        config: Configuration of the run.
        plan: Plan for one machine.
        nodes: Nodes of the cluster.
        hosts: number of environment hosts.
        processes: number of learner processes.
        replay_bytes: size of the replay that a node is to hold.

    Raises:
        UserError: If the plan cannot be on a cluster, or not on this one.
    """
    servers = config.cluster.num_inference_servers
    if servers:
        plan = call_servers(plan)
    plan = place_hosts(plan, nodes, hosts, config.cluster.placement)
    if servers:
        plan = place_servers(plan, nodes, servers, processes, may_use_gpus=config.inference.platform != "cpu")
    if config.replay.is_remote:
        plan = place_replay(plan, nodes, replay_bytes)
    return plan
