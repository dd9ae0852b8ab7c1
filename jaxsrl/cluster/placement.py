"""Placement of a run: on this machine, or with environment hosts on the nodes of a cluster (`--cluster.address`)."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners.processes import Processes
from jaxsrl.cluster.learners.shared_cluster import (
    shared_engine,
    shared_local_cluster,
    shared_nodes,
    validate_one_machine,
)
from jaxsrl.cluster.protocol.bundles import requested_bundles
from jaxsrl.cluster.protocol.engine import Engine
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.apply import local_nodes, num_hosts, place_on_nodes, place_plan
from jaxsrl.plan.passes.learner_processes import resources_over
from jaxsrl.plan.plan import Plan

_LOOK_SECONDS = 0.5
_ROOM = 1 << 20  # cores: more than any run needs

OpenEngine = Callable[[int], contextlib.AbstractContextManager[Engine]]
"""From the bytes that an object store must have room for (where it is started here) to an engine."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """A plan and the machines that it is placed on.

    Attributes:
        plan: Plan with nodes, where there is a cluster.
        resources: Resources of all learner processes, with the nodes of the cluster.
        open_engine: returns a context manager of the engine that connects the nodes; None without a cluster.
    """

    plan: Plan
    resources: Resources
    open_engine: OpenEngine | None = None


@contextlib.contextmanager
def place_run(
    config: RunConfig, plan: Plan, resources: Resources, replay_bytes: int = 0, processes: Processes | None = None
) -> Iterator[Placement]:
    """Places a run as its flags ask for, and stays connected to the cluster inside; all learner processes call it together.

    A local cluster starts when its engine is opened: nothing starts before the plan has been validated.

    Args:
        config: Configuration of the run.
        plan: Plan for one process that has all devices.
        resources: Resources of this process.
        replay_bytes: size of the replay that a node is to hold.
        processes: Processes of the run; None for one.

    Raises:
        UserError: If there is no cluster, or the plan cannot run on it or in several processes.
        FailedLearnerError: another process failed.
        LostLearnerError: another process did not come.
    """
    number = 1 if processes is None else processes.num_processes
    with _placed(config, plan, resources, replay_bytes, number, processes) as placement:
        nodes = placement.resources.nodes

        @contextlib.contextmanager
        def open_engine(store_bytes: int) -> Iterator[Engine]:
            with contextlib.ExitStack() as opened:
                # A cluster that is there already has the store that it was started with.
                if config.cluster.address == "local":
                    opened.enter_context(shared_local_cluster(nodes, store_bytes, processes))
                engine = _reserve(config, placement.plan, replay_bytes, processes)
                yield opened.enter_context(engine)

        yield dataclasses.replace(placement, open_engine=open_engine) if nodes else placement


def preview_placement(config: RunConfig, plan: Plan, resources: Resources, replay_bytes: int = 0) -> Placement:
    """Returns the placement that `place_run` makes. It starts nothing, and joins an existing cluster only to look.

    Raises:
        UserError: If `place_run` raises it, or the number of processes is known only where the run is started.
    """
    distributed = config.distributed
    number = distributed.num_processes if distributed.is_on else 1
    if not number:
        raise UserError(
            f"--distributed.coordinator {distributed.coordinator} finds the number of processes where a run is started: "
            f"to see its plan, use --distributed.coordinator HOST:PORT --distributed.num-processes N "
            f"--distributed.process-id 0 (nothing connects to it)"
        )
    with _placed(config, plan, resources, replay_bytes, number, None) as placement:
        return placement


@contextlib.contextmanager
def _placed(
    config: RunConfig, plan: Plan, resources: Resources, replay_bytes: int, number: int, processes: Processes | None
) -> Iterator[Placement]:
    """Places a run in a number of processes; inside, this process is connected to a cluster that is there already."""
    nodes: tuple[Node, ...] = ()
    with contextlib.ExitStack() as held:
        if config.cluster.address == "local":
            from jaxsrl.cluster.ray.engine import import_ray

            import_ray()  # raises where it is not installed
            nodes = local_nodes(config, plan, number)
            if processes is not None:
                validate_one_machine(processes)
        elif config.cluster.is_used:
            from jaxsrl.cluster.ray.local_cluster import joined_cluster

            held.enter_context(joined_cluster())
            find = partial(_find_nodes, config, plan, number, replay_bytes)
            nodes = find() if processes is None else shared_nodes(processes, find)
        placed = place_plan(config, plan, nodes, resources, number, replay_bytes)
        every = resources_over(resources, number)
        yield Placement(placed, dataclasses.replace(every, nodes=nodes) if nodes else every)


def _find_nodes(config: RunConfig, plan: Plan, processes: int, replay_bytes: int) -> tuple[Node, ...]:
    """Returns the nodes of the cluster that this process is connected to.

    Where the run says how many hosts it wants, nodes that are still joining are waited for.

    Raises:
        UserError: If they have no room for the plan, or there are none.
    """
    from jaxsrl.cluster.ray.engine import RayEngine

    engine = RayEngine()
    if config.cluster.num_hosts:
        hosts = num_hosts(config, 0, processes)
        return nodes_in_time(
            engine.nodes,
            lambda nodes: place_on_nodes(config, plan, nodes, hosts, processes, replay_bytes),
            hosts,
            config.cluster.placement_timeout_seconds,
        )
    nodes = engine.nodes()
    if not nodes:
        raise UserError("--cluster.address auto: no node of the cluster gives out a core: start nodes with --num-cpus")
    return nodes


def _reserve(
    config: RunConfig, placed: Plan, replay_bytes: int, processes: Processes | None
) -> contextlib.AbstractContextManager[Engine]:
    """Returns an engine with room for all hosts, inference servers and replay of the run."""
    if processes is not None:
        return shared_engine(processes, config, placed)
    from jaxsrl.cluster.ray.engine import engine_with_room

    return engine_with_room(*requested_bundles(config, placed, replay_bytes))


def nodes_in_time(
    look: Callable[[], tuple[Node, ...]], place: Callable[[Sequence[Node]], Plan], hosts: int, seconds: float
) -> tuple[Node, ...]:
    """Returns the nodes of a cluster as soon as there is a plan on them.

    Args:
        look: Function that returns the nodes that there are now.
        place: makes a plan on nodes.
        hosts: Hosts that it has.
        seconds: Seconds that are waited.

    Raises:
        UserError: If `place` raises it: at once for any cluster, in the end for these nodes.
    """
    place([Node(f"any{number}", _ROOM, _ROOM) for number in range(hosts)])
    deadline = time.monotonic() + seconds
    while True:
        nodes = look()
        try:
            place(nodes)
        except UserError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return nodes
