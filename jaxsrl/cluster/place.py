"""Where a run is: on this machine alone, or with environment hosts on the nodes of a cluster (`--run.cluster`)."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from envpool_bridge.errors import UserError
from jaxsrl.cluster.engine import Engine
from jaxsrl.config import RunConfig
from jaxsrl.dataflow.nodes import cores_of_host, plan_on_nodes
from jaxsrl.dataflow.plan import Plan
from jaxsrl.dataflow.resources import Node, Resources

OpenEngine = Callable[[int], contextlib.AbstractContextManager[Engine]]
"""From the bytes that an object store must have room for (where it is started here) to an engine."""

_LOCAL_NODES = 2
_SPARE = 2  # hosts that a local node says it has room for: so that the others can take over when one is lost


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
def place_of(config: RunConfig, plan: Plan, resources: Resources) -> Iterator[Place]:
    """The place that the run's flags ask for; a cluster that is there is left when this ends.

    Args:
        config: of the run.
        plan: for this machine.
        resources: of this machine.

    Raises:
        UserError: there is no cluster, or the plan cannot run on it.
    """
    if not config.cluster:
        yield Place(plan, resources)
        return
    from jaxsrl.cluster.ray_local import joined_cluster

    if config.cluster == "local":
        yield _local_place(config, plan, resources)
        return
    with joined_cluster():
        yield _joined_place(config, plan, resources)


def _local_place(config: RunConfig, plan: Plan, resources: Resources) -> Place:
    """A cluster that is started when the engine is opened: nothing starts before the plan has been checked."""
    from jaxsrl.cluster.ray_engine import RayEngine, import_ray
    from jaxsrl.cluster.ray_local import LocalCluster

    import_ray()
    hosts = config.cluster_nodes or _LOCAL_NODES
    nodes = tuple(Node(f"node{number + 1}", config.num_env_workers * _SPARE + 2) for number in range(hosts))
    placed = plan_on_nodes(plan, nodes, hosts)
    cores = cores_of_host(placed)
    nodes = tuple(dataclasses.replace(node, num_cores=cores * _SPARE) for node in nodes)

    @contextlib.contextmanager
    def open_engine(store_bytes: int) -> Iterator[Engine]:
        cluster = LocalCluster(hosts, cores * _SPARE, store_bytes)
        try:
            yield RayEngine(cores)
        finally:
            cluster.close()

    return Place(placed, dataclasses.replace(resources, nodes=nodes), open_engine)


def _joined_place(config: RunConfig, plan: Plan, resources: Resources) -> Place:
    from jaxsrl.cluster.ray_engine import RayEngine

    nodes = RayEngine(0).nodes()
    if not nodes:
        raise UserError("--run.cluster auto: no node of the cluster gives out a core: start nodes with --num-cpus")
    placed = plan_on_nodes(plan, nodes, config.cluster_nodes or len(nodes))
    cores = cores_of_host(placed)

    @contextlib.contextmanager
    def open_engine(store_bytes: int) -> Iterator[Engine]:
        del store_bytes  # it has what it was started with: `validate_memory`
        yield RayEngine(cores)

    return Place(placed, dataclasses.replace(resources, nodes=nodes), open_engine)
