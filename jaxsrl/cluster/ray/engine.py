"""Ray as the engine: hosts, inference servers and replay are actors, and bytes go through its object store."""

# Ray says only partly which types it takes and gives:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.cluster.protocol.bundles import HOSTS, REPLAY, SERVERS, Bundle, Reserving
from jaxsrl.cluster.protocol.engine import Call, HostGoneError
from jaxsrl.cluster.ray.actors import (
    RayHost,
    RayRemote,
    RayRemoteReplay,
    RayRemoteServer,
    RayReplay,
    RayServer,
    first_words,
    is_doubted,
    raise_cause,
    start_actor,
)
from jaxsrl.cluster.ray.head import Head
from jaxsrl.cluster.ray.placement_group import HostGroup, reserved
from jaxsrl.machine.resources import Node

_GET_SECONDS = 60.0  # for what has ended already
_SERVER_CALLS = 4096  # at once: one a lane, and a few more
_CONTROL_CALLS = 4  # at once: one may wait for priorities that another brings
_UNKNOWN: Mapping[str, str] = {}


def import_ray(flag: str = "--cluster.address") -> Any:
    """Returns the module `ray`.

    Args:
        flag: Flag that needs it, for the message.

    Raises:
        UserError: If it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(f'{flag} needs Ray, which is not installed: pip install "jaxsrl[ray]"') from error


def node_names(alive: Sequence[dict[str, Any]], known: Mapping[str, str] = _UNKNOWN) -> dict[str, str]:
    """Returns unique names of Ray's nodes, and their ids: the node's own name, with a number if several share it.

    Args:
        alive: Those of `ray.nodes()` that are alive.
        known: names of nodes by their ids, which they keep, whatever other nodes are alive.
    """
    names: dict[str, str] = {}
    taken = {known[node["NodeID"]] for node in alive if node["NodeID"] in known}
    for node in sorted(alive, key=lambda one: (one["NodeName"], one["NodeID"])):
        name, number = known.get(node["NodeID"], node["NodeName"]), 1
        while node["NodeID"] not in known and name in {*names, *taken}:
            number += 1
            name = f"{node['NodeName']}#{number}"
        names[name] = node["NodeID"]
    return names


def nodes_of(alive: Sequence[dict[str, Any]], known: Mapping[str, str] = _UNKNOWN) -> tuple[Node, ...]:
    """Returns the resources of Ray's nodes by name, without nodes that offer no core; arguments as of `node_names`."""
    by_id = {node["NodeID"]: node["Resources"] for node in alive}
    named = [(name, by_id[node]) for name, node in node_names(alive, known).items()]
    return tuple(
        Node(
            name,
            int(has["CPU"]),
            int(has.get("GPU", 0)),
            int(has["memory"]) if "memory" in has else None,
            int(has["object_store_memory"]) if "object_store_memory" in has else None,
        )
        for name, has in named
        if has.get("CPU", 0) >= 1
    )


class RayEngine:
    """An Engine over a Ray cluster that this process is connected to.

    Args:
        rooms: reserved for each kind of process (HOSTS, SERVERS, REPLAY).

    Attributes:
        head: Head of the cluster.
    """

    def __init__(self, rooms: Mapping[str, HostGroup] | None = None) -> None:
        self._ray, self.rooms = import_ray(), dict(rooms or {})
        self.head = Head(self._ray)
        self._names: dict[str, str] = {}  # of all nodes that this engine has seen, by their ids

    def nodes(self) -> tuple[Node, ...]:
        alive = self._alive()
        return nodes_of(alive, self._names)

    def name_of(self, node_id: str) -> str:
        """Returns the name of a node by its Ray id; "" if it is not alive."""
        alive = {node["NodeID"] for node in self._alive()}
        return self._names[node_id] if node_id in alive else ""

    def node_ids(self) -> list[str]:
        """Returns the Ray ids of all living nodes."""
        return [node["NodeID"] for node in self._alive()]

    def here(self) -> str:
        """Returns the name of this process's node; "" if it offers no cores."""
        name = self.name_of(self._ray.get_runtime_context().get_node_id())
        return name if any(node.name == name for node in self.nodes()) else ""

    def reserved_node(self, kind: str, index: int) -> str | None:
        node_id = self.head.call(lambda: self.rooms[kind].node_id(index)) if kind in self.rooms else None
        return (self.name_of(node_id) or None) if node_id is not None else None

    # An actor starts in its bundle, which moves to another node when its own dies.
    def spawn(self, host: int, node: str) -> RayRemote:
        del node
        actor = self._start(RayHost, HOSTS, host, concurrency_groups={"slots": 1, "control": 2})
        return RayRemote(actor, has_groups=True)

    def spawn_server(self, server: int, node: str, gpus: int) -> RayRemoteServer:
        del node
        actor = self._start(RayServer, SERVERS, server, gpus, num_gpus=gpus, max_concurrency=_SERVER_CALLS)
        return RayRemoteServer(actor)

    def spawn_replay(self, node: str, slots: int) -> RayRemoteReplay:
        del node
        groups = {"slots": slots, "samples": 1, "control": _CONTROL_CALLS}  # a thread waits for each slot on its way
        return RayRemoteReplay(self._start(RayReplay, REPLAY, 0, concurrency_groups=groups), has_groups=True)

    def check(self) -> None:
        self.head.check()

    def put(self, value: np.ndarray) -> Any:
        return self._ray.put(value)

    def wait(self, calls: Sequence[Call], timeout_seconds: float) -> list[Call]:
        done, rest = self._ray.wait(list(calls), num_returns=1, timeout=timeout_seconds)
        if done and rest:
            done = done + self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return done

    def get(self, call: Call) -> Any:
        """Returns what Engine defines. Large arrays are read-only views of the object store."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=_GET_SECONDS)
        except exceptions.RayTaskError as error:
            raise_cause(error)
            raise RuntimeError(f"an actor of the cluster failed:\n{error}") from error
        except exceptions.RayError as error:
            raise HostGoneError(first_words(error), is_doubted(exceptions, error)) from error

    def _start(self, body: type, kind: str, index: int, *arguments: Any, **options: Any) -> Any:
        room = self.rooms[kind]
        return self.head.call(lambda: start_actor(self._ray, body, {**room.options(index), **options}, *arguments))

    def _alive(self) -> list[dict[str, Any]]:
        """Returns the living nodes, which have names from now on."""
        alive = [node for node in self.head.call(self._ray.nodes) if node["Alive"]]
        self._names |= {node: name for name, node in node_names(alive, self._names).items()}
        return alive


@contextlib.contextmanager
def engine_with_room(
    bundles: Sequence[Bundle], how: Reserving, servers: Sequence[Bundle] = (), replay: Sequence[Bundle] = ()
) -> Iterator[RayEngine]:
    """Yields an engine with room for all of these hosts, servers and replay. Releases the room and its processes at the end.

    Raises:
        UserError: If the cluster has no room for all of them in time.
    """
    engine = RayEngine()
    kinds = {kind[0].what: kind for kind in (bundles, servers, replay) if kind}
    with reserved(import_ray(), list(kinds.values()), how, engine.nodes, engine.name_of) as rooms:
        engine.rooms = dict(zip(kinds, rooms, strict=True))
        yield engine
