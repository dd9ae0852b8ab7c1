"""One Ray cluster for all learner processes of a run.

Process 0 starts the cluster or finds the one that exists, and reserves room for all hosts and inference servers. It sends the
others what they need through jax's coordination service. The service asks for no password: no secret is sent, and no address is
used unchecked. A cluster that is started here is named by its directory, which must belong to this process's user and holds
address and token. A cluster that exists must prove to be that of process 0.
"""

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners.processes import Processes
from jaxsrl.cluster.protocol.bundles import HOSTS, SERVERS, Bundle, bundles_of, bundles_of_servers, reserving
from jaxsrl.cluster.protocol.engine import Engine
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Node
from jaxsrl.plan.passes.learner_processes import replicas_of, servers_of
from jaxsrl.plan.plan import Plan

_PREFIX = "jaxsrl/cluster/"
_MACHINES, _DIRECTORY, _NODES, _AT, _ROOM = (
    _PREFIX + name for name in ("machine/", "directory", "nodes", "at/", "room")
)


@contextlib.contextmanager
def shared_local_cluster(nodes: Sequence[Node], store_bytes: int, processes: Processes | None) -> Iterator[None]:
    """Connects all learner processes of this machine to a cluster that process 0 starts, and ends on exit.

    Args:
        nodes: Nodes of the cluster.
        store_bytes: size of the object store of each node.
        processes: Processes of the run; None for one.
    """
    from jaxsrl.cluster.ray.local_cluster import LocalCluster, joined_local_cluster

    with contextlib.ExitStack() as held:
        if processes is None or processes.is_main:
            cluster = LocalCluster(len(nodes), nodes[0].num_cores, store_bytes)
            held.callback(cluster.close)
            if processes is not None:
                processes.send(_DIRECTORY, str(cluster.directory))
        else:
            held.enter_context(joined_local_cluster(processes.wait_for(_DIRECTORY)))
        if processes is not None:
            processes.heed_aborts()
        yield


def shared_nodes(processes: Processes, find: Callable[[], tuple[Node, ...]]) -> tuple[Node, ...]:
    """Returns the nodes of the existing cluster as process 0 finds them; each process is connected to it.

    Args:
        processes: Processes of the run.
        find: returns the nodes; called at process 0.

    Raises:
        UserError: this process is connected to another cluster.
    """
    from jaxsrl.cluster.ray.engine import RayEngine

    processes.heed_aborts()
    engine = RayEngine()
    if processes.is_main:
        nodes = find()
        message = {"nodes": [dataclasses.asdict(node) for node in nodes], "ids": engine.node_ids()}
        processes.send(_NODES, json.dumps(message))
        return nodes
    message = json.loads(processes.wait_for(_NODES))
    nodes = tuple(Node(**node) for node in message["nodes"])
    if not set(message["ids"]) & set(engine.node_ids()):
        raise UserError(
            f"--cluster.address auto: the Ray cluster of learner process {processes.process_id} (nodes "
            f"{', '.join(node.name for node in engine.nodes())}) is another than that of process 0 (nodes "
            f"{', '.join(node.name for node in nodes)}): join the machine to that one (ray start --address), or set "
            f"RAY_ADDRESS to it at every process"
        )
    return nodes


@contextlib.contextmanager
def shared_engine(processes: Processes, config: RunConfig, placed: Plan) -> Iterator[Engine]:
    """Returns an engine with room for all hosts and inference servers of the run, which process 0 reserves.

    Args:
        processes: Processes of the run.
        config: Configuration of the run.
        placed: plan on the nodes of the cluster.
    """
    from jaxsrl.cluster.ray.engine import RayEngine, engine_with_room, import_ray
    from jaxsrl.cluster.ray.placement_group import HostGroup

    processes.send(f"{_AT}{processes.process_id}", RayEngine().here())
    if processes.is_main:
        at = [processes.wait_for(f"{_AT}{process}") for process in range(processes.num_processes)]
        hosts, servers = bundles_near(placed, config.cluster.host_memory_gib, at)
        with engine_with_room(hosts, reserving(config), servers) as engine:
            rooms = {kind: (room.hex_id, room.bundle_of_host) for kind, room in engine.rooms.items()}
            processes.send(_ROOM, json.dumps(rooms))
            yield engine
        return
    message = json.loads(processes.wait_for(_ROOM))
    bundles = {HOSTS: bundles_of(placed, config.cluster.host_memory_gib), SERVERS: bundles_of_servers(placed)}
    yield RayEngine(
        {
            kind: HostGroup.of_other_process(import_ray(), hex_id, bundles[kind][0], bundle_of_each)
            for kind, (hex_id, bundle_of_each) in message.items()
        }
    )


def bundles_near(plan: Plan, host_gib: float, learners_at: Sequence[str]) -> tuple[tuple[Bundle, ...], ...]:
    """Returns bundles of hosts and of inference servers that prefer the node of their learner process.

    Args:
        plan: Plan with nodes.
        host_gib: Host gib, as `bundles_of`.
        learners_at: the node of each learner process; "" for one that is on none with cores, whose hosts and servers stay where the
            plan has them.

    Returns:
        One a host, and one a server.
    """
    hosts, servers, number = list(bundles_of(plan, host_gib)), list(bundles_of_servers(plan)), len(learners_at)
    for process, node in enumerate(learners_at):
        if node:
            for bundles, mine in (
                (hosts, replicas_of(plan, process, number)),
                (servers, servers_of(plan, process, number)),
            ):
                bundles[mine.start : mine.stop] = [dataclasses.replace(bundles[one], node=node) for one in mine]
    return tuple(hosts), tuple(servers)


def validate_one_machine(processes: Processes) -> None:
    """Rejects a cluster on the loopback interface for learner processes that do not share one.

    Raises:
        UserError: If they do not.
    """
    processes.send(f"{_MACHINES}{processes.process_id}", json.dumps(_machine()))
    machines = [json.loads(processes.wait_for(f"{_MACHINES}{process}")) for process in range(processes.num_processes)]
    if any(machine != machines[0] for machine in machines):
        names = ", ".join(str(machine[0]) for machine in machines)
        raise UserError(
            f"--cluster.address local starts a cluster on the loopback interface, which learner processes on several machines (or "
            f"in containers: {names}) do not share: start Ray on them (ray start --head, ray start --address) and use "
            f"--cluster.address auto"
        )


def _machine() -> list[Any]:
    """Returns values that are equal for processes that reach each other on the loopback interface."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        booted = file.read().strip()
    return [socket.gethostname(), booted, os.stat("/proc/self/ns/net").st_ino]
