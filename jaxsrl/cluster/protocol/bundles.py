"""Resources that a run's environment hosts reserve together on a cluster. Pure functions; `placement_group` asks Ray."""

import dataclasses
from collections.abc import Sequence

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Node
from jaxsrl.plan.fragment import Devices
from jaxsrl.plan.passes.place_hosts import SPREADING_ADVICE, SPREADING_TEXT, Spreading, cores_of_host, format_node
from jaxsrl.plan.passes.place_inference import CORES_OF_SERVER
from jaxsrl.plan.passes.place_replay import CORES_OF_REPLAY
from jaxsrl.plan.plan import Plan
from jaxsrl.terminal.format import format_bytes

HOSTS, SERVERS, REPLAY = "environment hosts", "inference servers", "replay"
_GIB = 1 << 30
_SMALLER = {
    HOSTS: "a smaller --cluster.host-memory-gib",
    REPLAY: "a smaller --agent.replay.capacity",
}


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Share of a node that one environment host, inference server or replay takes.

    Attributes:
        cores: Cores of the node.
        memory_bytes: Bytes of the node's memory; 0 reserves none.
        node: where it would best be, which it need not be.
        gpus: GPUs of the node.
        what: the kind of process, for messages.
    """

    cores: int
    memory_bytes: int = 0
    node: str = ""
    gpus: int = 0
    what: str = HOSTS

    def resources(self) -> dict[str, float]:
        """Returns resources by Ray's names: `CPU`, `GPU`, and `memory` in bytes."""
        resources = {"CPU": float(self.cores)}
        if self.gpus:
            resources["GPU"] = float(self.gpus)
        return {**resources, "memory": float(self.memory_bytes)} if self.memory_bytes else resources


@dataclasses.dataclass(frozen=True)
class Reserving:
    """Request for the room of hosts.

    Attributes:
        spreading: over nodes.
        wait_seconds: Time that a run waits until there is room for all its hosts.
    """

    spreading: Spreading = "spread"
    wait_seconds: float = 60.0


def bundles_of(plan: Plan, host_gib: float = 0.0) -> tuple[Bundle, ...]:
    """Returns one bundle a host of the plan, in their order; each would best be on the node that the plan names."""
    cores = cores_of_host(plan)
    return tuple(Bundle(cores, int(host_gib * _GIB), node) for node in plan.environments.nodes)


def bundles_of_servers(plan: Plan) -> tuple[Bundle, ...]:
    """Returns one bundle an inference server that hosts call; () where they act themselves."""
    if not plan.calls_servers:
        return ()
    placement = plan.inference.placement
    gpus = int(isinstance(placement, Devices) and placement.platform == "gpu")
    return tuple(Bundle(CORES_OF_SERVER, node=node, gpus=gpus, what=SERVERS) for node in plan.inference.nodes)


def bundles_of_replay(plan: Plan, num_bytes: int) -> tuple[Bundle, ...]:
    """Returns the bundle of replay on a node, with memory for all of its experience; () where it is kept elsewhere."""
    if plan.replay is None:
        return ()
    return tuple(Bundle(CORES_OF_REPLAY, num_bytes, node, what=REPLAY) for node in plan.replay.nodes)


def reserving(config: RunConfig) -> Reserving:
    """Returns how a run asks for its room."""
    return Reserving(config.cluster.placement, config.cluster.placement_timeout_seconds)


def requested_bundles(
    config: RunConfig, placed: Plan, replay_bytes: int = 0
) -> tuple[tuple[Bundle, ...], Reserving, tuple[Bundle, ...], tuple[Bundle, ...]]:
    """Returns the bundles of hosts, how they are asked for, and the bundles of inference servers and of replay."""
    hosts, servers = bundles_of(placed, config.cluster.host_memory_gib), bundles_of_servers(placed)
    return hosts, reserving(config), servers, bundles_of_replay(placed, replay_bytes)


def match_bundles(wanted: Sequence[str], reserved: Sequence[str]) -> tuple[int, ...]:
    """Returns the reserved bundle of each host: one on the node that it wants, if there is one. All bundles are alike.

    Args:
        wanted: the node that each host wants; "" for none.
        reserved: the node of each bundle.

    Returns:
        The number of a bundle for each host, every one once. What is on nodes that no host wants is dealt out in order of nodes,
        so that neighbors share them.

    Examples:
        >>> match_bundles(["b", "a", "a"], ["a", "b", "c"])
        (1, 0, 2)
    """
    left = sorted(range(len(reserved)), key=lambda bundle: (reserved[bundle], bundle))
    chosen: dict[int, int] = {}
    for host, node in enumerate(wanted):
        fitting = next((bundle for bundle in left if reserved[bundle] == node), None)
        if fitting is not None:
            chosen[host] = fitting
            left.remove(fitting)
    rest = iter(left)
    return tuple(chosen[host] if host in chosen else next(rest) for host in range(len(wanted)))


def placement_error(kinds: Sequence[Sequence[Bundle]], how: Reserving, nodes: Sequence[Node], free_cores: float) -> str:
    """Returns why a run does not start: what it asked for, what the cluster has, and what to do.

    Args:
        kinds: bundles that were asked for together, those of its hosts first; all of a kind are alike.
        how: they were asked for.
        nodes: Nodes of the cluster.
        free_cores: Free cores of all nodes, not reserved.
    """
    hosts, *others = [_format_bundles(kind) for kind in kinds]
    first = [kind[0] for kind in kinds]
    with_memory, with_gpus = any(one.memory_bytes for one in first), any(one.gpus for one in first)
    sizes = ", ".join(format_node(node, with_memory, with_gpus) for node in nodes) or "no nodes"
    advice = [
        "wait until other runs have ended",
        "add nodes",
        "use fewer --pool.num-workers or --cluster.num-hosts",
        *([SPREADING_ADVICE[how.spreading]] if how.spreading in SPREADING_ADVICE else []),
        *[_SMALLER[one.what] for one in first if one.memory_bytes and one.what in _SMALLER],
        *(["fewer --cluster.num-inference-servers"] if any(one.what == SERVERS for one in first) else []),
    ]
    besides = "".join(f", and at the same time for {words}" for words in others)
    return (
        f"the cluster had no room within {how.wait_seconds:g} s (--cluster.placement-timeout-seconds) for {hosts}, "
        f"{SPREADING_TEXT[how.spreading]}{besides}; it has {sizes}, of which {free_cores:g} cores are free. Nothing is held. "
        f"Do one of: {'; '.join(advice)}"
    )


def _format_bundles(bundles: Sequence[Bundle]) -> str:
    one = bundles[0]
    memory = f" and {format_bytes(one.memory_bytes)} of memory" if one.memory_bytes else ""
    gpus = f" and {one.gpus} GPU" if one.gpus else ""
    return f"{len(bundles)} {one.what} of {one.cores} cores{memory}{gpus} each"
