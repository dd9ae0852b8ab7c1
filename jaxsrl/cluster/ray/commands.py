"""Commands on the nodes of a Ray cluster: each is held by an actor, which takes an equal share of the nodes' cores."""

# Ray says only partly which types it takes and gives:
# pyright: reportUnknownMemberType=false

import contextlib
from collections.abc import Callable, Iterator

from jaxsrl.cluster.node_processes import NodeLimits, NodeProcesses, SharedFile, share_of_nodes
from jaxsrl.cluster.ray.actors import RayCommand, RayRemote, start_actor
from jaxsrl.cluster.ray.engine import RayEngine, import_ray


@contextlib.contextmanager
def processes_on_nodes(
    at_once: int, shared: SharedFile, show: Callable[[str], None], limits: NodeLimits | None = None
) -> Iterator[NodeProcesses]:
    """Yields commands on the nodes of the cluster that this process is connected to. At the end none is left.

    Args:
        at_once: commands at the same time.
        shared: file that all nodes must see.
        show: receives lines.
        limits: Limits of restarts and waits.

    Raises:
        UserError: If the nodes have fewer cores.
    """
    ray, engine = import_ray(), RayEngine()
    cores, gpus = share_of_nodes(engine.nodes(), at_once)
    options = {"num_cpus": cores, "num_gpus": gpus, "scheduling_strategy": "SPREAD"}
    nodes = ", ".join(f"{node.name}: {node.num_cores}" for node in engine.nodes())
    room = f"it takes {cores} cores and {gpus} GPUs; cores of the nodes: {nodes}"

    def spawn() -> RayRemote:
        return RayRemote(engine.head.call(lambda: start_actor(ray, RayCommand, options)))

    processes = NodeProcesses(engine, spawn, shared, room, show, limits)
    try:
        yield processes
    finally:
        processes.close()
