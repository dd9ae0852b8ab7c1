"""Where a run of several learner processes is: each with its own environments, or all with hosts on one Ray cluster.

Process 0 starts the cluster (or finds the one that is there), reserves room for all hosts and inference servers, and tells the
others. What it tells goes through jax's coordination service, which asks nobody for a password: so no secret is told, and nothing
told is connected to unseen.
A cluster that is started here is told by its directory, which must belong to this process's user and holds address and token; one
that is there is joined as process 0 has joined it, and must prove to be the same.
"""

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners.processes import Processes
from jaxsrl.cluster.placement import Place, nodes_for, reserving
from jaxsrl.cluster.protocol.bundles import Bundle, bundles_of, bundles_of_servers
from jaxsrl.cluster.protocol.engine import Engine
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.learner_processes import plan_over, replicas_of, resources_over, servers_of
from jaxsrl.plan.passes.on_cluster import local_nodes, place_over_processes
from jaxsrl.plan.plan import Plan

_PREFIX = "jaxsrl/cluster/"
_MACHINES, _DIRECTORY, _NODES, _AT, _ROOM = (
    _PREFIX + name for name in ("machine/", "directory", "nodes", "at/", "room")
)


@contextlib.contextmanager
def place_together(processes: Processes, config: RunConfig, plan: Plan, resources: Resources) -> Iterator[Place]:
    """The place that the run's flags ask for, the same at every process; all call it together.

    Args:
        processes: of the run.
        config: of the run.
        plan: for one process that has all devices.
        resources: of this process.

    Raises:
        UserError: the plan cannot run in several processes, or there is no cluster for it.
        LostLearnerError: another process failed or did not come.
    """
    number = processes.num_processes
    whole = resources_over(resources, number)
    if not config.cluster:
        yield Place(plan_over(plan, number, resources.num_devices), whole)
    elif config.cluster == "local":
        yield _local(processes, config, plan, resources)
    else:
        with _joined(processes, config, plan) as nodes:
            placed = place_over_processes(config, plan, nodes, number, resources)

            @contextlib.contextmanager
            def open_engine(store_bytes: int) -> Iterator[Engine]:
                del store_bytes  # it has what it was started with: `validate_memory`
                with _engine(processes, config, placed) as engine:
                    yield engine

            yield Place(placed, dataclasses.replace(whole, nodes=nodes), open_engine)


def planned_together(config: RunConfig, plan: Plan, resources: Resources) -> Place:
    """What `place_together` would come to at every process; starts nothing, and joins the cluster that is there only to look.

    Raises:
        UserError: as `place_together`, or the number of processes is known only where the run is started.
    """
    number = config.distributed.num_processes
    if not number:
        raise UserError(
            f"--run.distributed.coordinator {config.distributed.coordinator} finds the number of processes where a run is started: "
            f"to see its plan, use --run.distributed.coordinator HOST:PORT --run.distributed.num-processes N "
            f"--run.distributed.process-id 0 (nothing connects to it)"
        )
    whole = resources_over(resources, number)
    if not config.cluster:
        return Place(plan_over(plan, number, resources.num_devices), whole)
    if config.cluster == "local":
        nodes = local_nodes(config, plan, number)
    else:
        from jaxsrl.cluster.ray.engine import RayEngine
        from jaxsrl.cluster.ray.local_cluster import joined_cluster

        with joined_cluster():
            nodes = nodes_for(config, plan, RayEngine().nodes, number)
    placed = place_over_processes(config, plan, nodes, number, resources)
    return Place(placed, dataclasses.replace(whole, nodes=nodes))


def bundles_near(plan: Plan, host_gib: float, learners_at: Sequence[str]) -> tuple[tuple[Bundle, ...], ...]:
    """Bundles of the plan's hosts and of its inference servers, each best on the node of the learner process that it belongs to.

    Args:
        plan: with nodes.
        host_gib: as `bundles_of`.
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


def _local(processes: Processes, config: RunConfig, plan: Plan, resources: Resources) -> Place:
    """A cluster that process 0 starts when the engine is opened, for processes of one machine."""
    from jaxsrl.cluster.ray.engine import import_ray
    from jaxsrl.cluster.ray.local_cluster import LocalCluster, joined_local_cluster

    import_ray()
    _require_one_machine(processes)
    number = processes.num_processes
    nodes = local_nodes(config, plan, number)
    placed = place_over_processes(config, plan, nodes, number, resources)

    @contextlib.contextmanager
    def open_engine(store_bytes: int) -> Iterator[Engine]:
        with contextlib.ExitStack() as held:
            if processes.is_main:
                cluster = LocalCluster(len(nodes), nodes[0].num_cores, store_bytes)
                held.callback(cluster.close)
                processes.tell(_DIRECTORY, str(cluster.directory))
            else:
                held.enter_context(joined_local_cluster(processes.wait_for(_DIRECTORY)))
            processes.heed_aborts()
            yield held.enter_context(_engine(processes, config, placed))

    whole = resources_over(resources, number)
    return Place(placed, dataclasses.replace(whole, nodes=nodes), open_engine)


@contextlib.contextmanager
def _joined(processes: Processes, config: RunConfig, plan: Plan) -> Iterator[tuple[Node, ...]]:
    """Inside, every process is connected to the cluster that process 0 has found; its nodes as process 0 sees them."""
    from jaxsrl.cluster.ray.engine import RayEngine
    from jaxsrl.cluster.ray.local_cluster import joined_cluster

    with joined_cluster():
        processes.heed_aborts()
        engine = RayEngine()
        if processes.is_main:
            nodes = nodes_for(config, plan, engine.nodes, processes.num_processes)
            told = {"nodes": [dataclasses.asdict(node) for node in nodes], "ids": engine.node_ids()}
            processes.tell(_NODES, json.dumps(told))
        else:
            told = json.loads(processes.wait_for(_NODES))
            nodes = tuple(Node(**node) for node in told["nodes"])
            if not set(told["ids"]) & set(engine.node_ids()):
                raise UserError(
                    f"--run.cluster auto: the Ray cluster of learner process {processes.process_id} (nodes "
                    f"{', '.join(node.name for node in engine.nodes())}) is another than that of process 0 (nodes "
                    f"{', '.join(node.name for node in nodes)}): join the machine to that one (ray start --address), or set "
                    f"RAY_ADDRESS to it at every process"
                )
        yield nodes


@contextlib.contextmanager
def _engine(processes: Processes, config: RunConfig, placed: Plan) -> Iterator[Engine]:
    """An engine with room for all hosts and inference servers of the run, which process 0 reserves."""
    from jaxsrl.cluster.ray.engine import RayEngine, engine_with_room, import_ray
    from jaxsrl.cluster.ray.placement_group import HostGroup

    processes.tell(f"{_AT}{processes.process_id}", RayEngine().here())
    if processes.is_main:
        at = [processes.wait_for(f"{_AT}{process}") for process in range(processes.num_processes)]
        hosts, servers = bundles_near(placed, config.cluster_host_gib, at)
        with engine_with_room(hosts, reserving(config), servers) as engine:
            rooms = [room for room in (engine.room, engine.servers_room) if room is not None]
            processes.tell(_ROOM, json.dumps([[room.hex_id, room.bundle_of_host] for room in rooms]))
            yield engine
        return
    told = json.loads(processes.wait_for(_ROOM))
    kinds = [bundles_of(placed, config.cluster_host_gib), bundles_of_servers(placed)]
    rooms = [
        HostGroup.of_other_process(import_ray(), hex_id, bundles[0], bundle_of_each)
        for (hex_id, bundle_of_each), bundles in zip(told, kinds, strict=False)  # without servers there is one
    ]
    yield RayEngine(*rooms)


def _require_one_machine(processes: Processes) -> None:
    """Refuses a cluster on the loopback interface where learner processes do not share one.

    Raises:
        UserError: they do not.
    """
    processes.tell(f"{_MACHINES}{processes.process_id}", json.dumps(_machine()))
    machines = [json.loads(processes.wait_for(f"{_MACHINES}{process}")) for process in range(processes.num_processes)]
    if any(machine != machines[0] for machine in machines):
        names = ", ".join(str(machine[0]) for machine in machines)
        raise UserError(
            f"--run.cluster local starts a cluster on the loopback interface, which learner processes on several machines (or in "
            f"containers: {names}) do not share: start Ray on them (ray start --head, ray start --address) and use "
            f"--run.cluster auto"
        )


def _machine() -> list[Any]:
    """What processes have in common that reach each other on the loopback interface."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        booted = file.read().strip()
    return [socket.gethostname(), booted, os.stat("/proc/self/ns/net").st_ino]
