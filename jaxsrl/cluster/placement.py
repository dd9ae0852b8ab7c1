"""Where a run is: on this machine alone, or with environment hosts on the nodes of a cluster (`--run.cluster`)."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from envpool_bridge.errors import UserError
from jaxsrl.cluster.protocol.bundles import Bundle, Reserving, bundles_of, bundles_of_replay, bundles_of_servers
from jaxsrl.cluster.protocol.engine import Engine
from jaxsrl.cluster.wait_for_nodes import nodes_in_time
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.on_cluster import local_nodes, num_hosts, placed_plan
from jaxsrl.plan.plan import Plan

OpenEngine = Callable[[int], contextlib.AbstractContextManager[Engine]]
"""From the bytes that an object store must have room for (where it is started here) to an engine."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A plan and where it runs.

    Attributes:
        plan: with nodes, where there is a cluster.
        resources: of this machine, with the nodes of the cluster.
        open_engine: makes a context manager of what carries bytes between the nodes; None without a cluster.
    """

    plan: Plan
    resources: Resources
    open_engine: OpenEngine | None = None


@contextlib.contextmanager
def place_of(config: RunConfig, plan: Plan, resources: Resources, kept_bytes: int = 0) -> Iterator[Place]:
    """The place that the run's flags ask for; a cluster that is there is left when this ends.

    Args:
        config: of the run.
        plan: for this machine.
        resources: of this machine.
        kept_bytes: of the experience that is to be kept on a node.

    Raises:
        UserError: there is no cluster, or the plan cannot run on it.
    """
    if not config.cluster:
        yield Place(plan, resources)
        return
    from jaxsrl.cluster.ray.local_cluster import joined_cluster

    if config.cluster == "local":
        yield _local_place(config, plan, resources, kept_bytes)
        return
    with joined_cluster():
        yield _joined_place(config, plan, resources, kept_bytes)


def reserving(config: RunConfig) -> Reserving:
    """How a run asks for its room."""
    return Reserving(config.cluster_placement, config.cluster_host_gib, config.cluster_wait_seconds)


def rooms_of(
    config: RunConfig, placed: Plan, kept_bytes: int = 0
) -> tuple[tuple[Bundle, ...], Reserving, tuple[Bundle, ...], tuple[Bundle, ...]]:
    """What a run asks a cluster for: room for its hosts, how, and room for its inference servers and its replay."""
    hosts, servers = bundles_of(placed, config.cluster_host_gib), bundles_of_servers(placed)
    return hosts, reserving(config), servers, bundles_of_replay(placed, kept_bytes)


def _local_place(config: RunConfig, plan: Plan, resources: Resources, kept_bytes: int) -> Place:
    """A cluster that is started when the engine is opened: nothing starts before the plan has been checked."""
    from jaxsrl.cluster.ray.engine import engine_with_room, import_ray
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    import_ray()
    nodes = local_nodes(config, plan)
    placed = placed_plan(config, plan, nodes, len(nodes), kept_bytes=kept_bytes)

    @contextlib.contextmanager
    def open_engine(store_bytes: int) -> Iterator[Engine]:
        cluster = LocalCluster(len(nodes), nodes[0].num_cores, store_bytes)
        try:
            with engine_with_room(*rooms_of(config, placed, kept_bytes)) as engine:
                yield engine
        finally:
            cluster.close()

    return Place(placed, dataclasses.replace(resources, nodes=nodes), open_engine)


def _joined_place(config: RunConfig, plan: Plan, resources: Resources, kept_bytes: int) -> Place:
    from jaxsrl.cluster.ray.engine import RayEngine, engine_with_room

    nodes = nodes_for(config, plan, RayEngine().nodes, kept_bytes=kept_bytes)
    placed = placed_plan(config, plan, nodes, num_hosts(config, len(nodes)), kept_bytes=kept_bytes)

    @contextlib.contextmanager
    def open_engine(store_bytes: int) -> Iterator[Engine]:
        del store_bytes  # it has what it was started with: `validate_memory`
        with engine_with_room(*rooms_of(config, placed, kept_bytes)) as engine:
            yield engine

    return Place(placed, dataclasses.replace(resources, nodes=nodes), open_engine)


def nodes_for(
    config: RunConfig,
    plan: Plan,
    look: Callable[[], tuple[Node, ...]],
    processes: int = 1,
    kept_bytes: int = 0,
) -> tuple[Node, ...]:
    """The nodes of a cluster that is there; where the run says how many hosts it wants, those that are to join are waited for.

    Raises:
        UserError: they have no room for the plan, or there are none.
    """
    if config.cluster_nodes:
        hosts = num_hosts(config, 0, processes)
        return nodes_in_time(
            look,
            lambda nodes: placed_plan(config, plan, nodes, hosts, processes, kept_bytes),
            hosts,
            config.cluster_wait_seconds,
        )
    nodes = look()
    if not nodes:
        raise UserError("--run.cluster auto: no node of the cluster gives out a core: start nodes with --num-cpus")
    return nodes
