"""Runs of a manager on the nodes of a Ray cluster, in place of processes of this machine."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from envpool_bridge.limits import count_cores
from jaxsrl.cluster.node_processes import NodeLimits, NodeProcesses, SharedFile
from jaxsrl.machine.run_tasks import run_tasks
from jaxsrl.tune.managed_runs import Train
from jaxsrl.tune.runs_on import RunsOn

TOKEN = ".nodes"
"""File in a manager's directory by which nodes prove that they see it."""

FLAG = "--runs-on"


@contextlib.contextmanager
def connected_nodes(
    runs_on: RunsOn, directory: Path, at_once: int, show: Callable[[str], None], limits: NodeLimits | None = None
) -> Iterator[NodeProcesses | None]:
    """Yields what starts runs on nodes; None for this machine. At the end no run is left.

    Args:
        runs_on: where the runs are.
        directory: Directory of the manager, which exists; all nodes must see it.
        at_once: runs at the same time. Each reserves an equal share of the nodes' cores, but may use all of its node.
        show: receives lines.
        limits: Limits of restarts and waits.

    Raises:
        UserError: Ray is not installed, there is no cluster, or the nodes have fewer cores.
    """
    if runs_on == "here":
        yield None
        return
    from jaxsrl.cluster.ray.commands import processes_on_nodes
    from jaxsrl.cluster.ray.engine import import_ray
    from jaxsrl.cluster.ray.local_cluster import LocalCluster, joined_cluster

    import_ray(FLAG)
    shared = SharedFile(directory.absolute() / TOKEN, secrets.token_hex(8))
    with contextlib.ExitStack() as held:
        if runs_on == "local":
            held.enter_context(contextlib.closing(LocalCluster(1, count_cores(), flag=FLAG)))
        else:
            held.enter_context(joined_cluster(FLAG))
        shared.path.write_text(shared.token)
        held.callback(shared.path.unlink, missing_ok=True)
        yield held.enter_context(processes_on_nodes(at_once, shared, show, limits))


def train_on(nodes: NodeProcesses | None, at_once: int, show: Callable[[str], None]) -> Train:
    """Returns a function that runs tasks on nodes; without nodes, on this machine."""
    start = None if nodes is None else nodes.start
    return lambda tasks: run_tasks(tasks, at_once, show, start=start)
