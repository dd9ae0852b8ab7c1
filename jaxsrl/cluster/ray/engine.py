"""Ray as the engine: environment hosts are actors, bytes go through its object store.

An actor is never restarted by Ray itself, and no call of it is ever made twice: what a lost host is to do next, only the learner
knows.
"""

# Ray says only partly which types it takes and gives:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from envpool_bridge.errors import EnvPoolError, UserError
from jaxsrl.cluster.protocol.bundles import Bundle, Reserving
from jaxsrl.cluster.protocol.engine import Call, Group, HostGoneError
from jaxsrl.cluster.ray.host_actor import RayHost
from jaxsrl.cluster.ray.placement_group import HostGroup, reserved
from jaxsrl.cluster.ray.replay_actor import RayRemoteReplay
from jaxsrl.cluster.ray.server_actor import RayRemoteServer
from jaxsrl.machine.resources import Node

_GET_SECONDS = 60.0  # for what has ended already


def import_ray() -> Any:
    """Returns the module `ray`.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError('--cluster.address needs Ray, which is not installed: pip install "jaxsrl[ray]"') from error


def node_names(alive: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Unique names of Ray's nodes, and their ids: the node's own name, with a number where several share it.

    Args:
        alive: of `ray.nodes()`, those that are alive.
    """
    names: dict[str, str] = {}
    for node in sorted(alive, key=lambda one: (one["NodeName"], one["NodeID"])):
        name, number = node["NodeName"], 1
        while name in names:
            number += 1
            name = f"{node['NodeName']}#{number}"
        names[name] = node["NodeID"]
    return names


def nodes_of(alive: Sequence[dict[str, Any]]) -> tuple[Node, ...]:
    """Ray's nodes as resources, by name; those that give out no core are left out."""
    by_id = {node["NodeID"]: node["Resources"] for node in alive}
    found = [(name, by_id[node]) for name, node in node_names(alive).items()]
    return tuple(
        Node(
            name,
            int(has["CPU"]),
            int(has.get("GPU", 0)),
            int(has["memory"]) if "memory" in has else None,
            int(has["object_store_memory"]) if "object_store_memory" in has else None,
        )
        for name, has in found
        if has.get("CPU", 0) >= 1
    )


class RayEngine:
    """An Engine over a Ray cluster that this process is connected to."""

    def __init__(
        self, group: HostGroup | None = None, servers: HostGroup | None = None, replay: HostGroup | None = None
    ) -> None:
        self._ray, self._group, self._servers, self._replay = import_ray(), group, servers, replay

    def nodes(self) -> tuple[Node, ...]:
        """Returns those that are alive and give out cores."""
        return nodes_of(self._alive())

    def name_of(self, node_id: str) -> str:
        """Our name of a node by Ray's id; "" if it is not alive."""
        return next((name for name, known in node_names(self._alive()).items() if known == node_id), "")

    def node_ids(self) -> list[str]:
        """Ray's ids of all nodes that are alive."""
        return [node["NodeID"] for node in self._alive()]

    def here(self) -> str:
        """Our name of the node that this process is on; "" if it gives out no cores."""
        name = self.name_of(self._ray.get_runtime_context().get_node_id())
        return name if any(node.name == name for node in self.nodes()) else ""

    def reserved_node(self, host: int) -> str | None:
        node_id = self.room.node_id(host)
        return (self.name_of(node_id) or None) if node_id is not None else None

    def spawn(self, host: int, node: str) -> "RayRemoteHost":
        """Begins to start an actor in the room that is reserved for the host; `node` is where that was last."""
        del node  # the room follows its node's death
        ray = self._ray
        options = {
            **self.room.options(host),
            "max_restarts": 0,
            "max_task_retries": 0,
            "concurrency_groups": {"slots": 1, "control": 2},
        }
        return RayRemoteHost(ray, ray.remote(**options)(RayHost).remote(), host)

    def server_node(self, server: int) -> str | None:
        node_id = self._servers.node_id(server) if self._servers is not None else None
        return (self.name_of(node_id) or None) if node_id is not None else None

    def spawn_server(self, server: int, node: str, gpus: int) -> RayRemoteServer:
        """Begins to start an actor in the room that is reserved for the server."""
        del node
        if self._servers is None:
            raise RuntimeError("no room is reserved for inference servers")
        return RayRemoteServer(self._ray, self._servers.options(server), gpus)

    def replay_node(self) -> str | None:
        node_id = self._replay.node_id(0) if self._replay is not None else None
        return (self.name_of(node_id) or None) if node_id is not None else None

    def spawn_replay(self, node: str, slots: int) -> RayRemoteReplay:
        """Begins to start an actor in the room that is reserved for replay."""
        del node
        if self._replay is None:
            raise RuntimeError("no room is reserved for replay")
        return RayRemoteReplay(self._ray, self._replay.options(0), slots)

    def put(self, value: np.ndarray) -> Any:
        """Copies an array into the object store, once."""
        return self._ray.put(value)

    def wait(self, calls: Sequence[Call], timeout_seconds: float) -> list[Call]:
        done, rest = self._ray.wait(list(calls), num_returns=1, timeout=timeout_seconds)
        if done and rest:
            done = done + self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return done

    def get(self, call: Call) -> Any:
        """As Engine says; arrays are read-only views of the object store, where they are too large to come with the answer."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=_GET_SECONDS)
        except exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, EnvPoolError):
                raise cause from None
            raise RuntimeError(f"an actor of the cluster failed:\n{error}") from error
        except exceptions.RayError as error:
            # Of an actor whose process died its node tells; if that says nothing either, it may be gone.
            doubted = not isinstance(error, exceptions.RayActorError) or isinstance(
                error, exceptions.ActorUnavailableError
            )
            raise HostGoneError(" ".join(str(error).split())[:300], doubted) from error

    def close(self) -> None:
        """Nothing: who connected to the cluster disconnects."""

    @property
    def room(self) -> HostGroup:
        if self._group is None:
            raise RuntimeError("no room is reserved for environment hosts")
        return self._group

    @property
    def servers_room(self) -> HostGroup | None:
        return self._servers

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]


@contextlib.contextmanager
def engine_with_room(
    bundles: Sequence[Bundle], how: Reserving, servers: Sequence[Bundle] = (), replay: Sequence[Bundle] = ()
) -> Iterator[RayEngine]:
    """Yields an engine with room for all of these hosts, servers and replay. Releases the room and its processes at the end.

    Raises:
        UserError: the cluster has no room for all of them in time.
    """
    looking = RayEngine()
    wanted = (bundles, servers, replay)
    with reserved(import_ray(), [kind for kind in wanted if kind], how, looking.nodes, looking.name_of) as rooms:
        left = iter(rooms)
        yield RayEngine(*(next(left) if kind else None for kind in wanted))


class RayRemoteHost:
    """A RemoteHost that is a Ray actor."""

    def __init__(self, ray: Any, actor: Any, host: int) -> None:
        self._ray, self._actor, self._host = ray, actor, host

    def call(self, group: Group, method: str, *arguments: Any) -> Call:
        return getattr(self._actor, method).options(concurrency_group=group).remote(*arguments)

    def kill(self) -> None:
        """SIGKILL: the kernel ends the host's workers with it."""
        self._ray.kill(self._actor, no_restart=True)
