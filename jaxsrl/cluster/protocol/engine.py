"""Protocol of the engine that carries calls and bytes between the learner and remote processes: Ray, or that of the tests."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from jaxsrl.machine.lifecycle import RequeueError
from jaxsrl.machine.resources import Node

Call = Any
"""A call that was made and may not have ended; hashable."""

Group = Literal["slots", "control", "samples"]
"""Calls of one group wait for each other at the host; those of the others do not wait for them."""


class HostGoneError(Exception):
    """The host, or the node it was on, is no more: whatever it had and had not handed over is lost.

    Attributes:
        node_is_doubted: whether nothing was heard of the node either, which may be dead.
    """

    def __init__(self, reason: str, node_is_doubted: bool = False) -> None:
        super().__init__(reason)
        self.node_is_doubted = node_is_doubted


@dataclasses.dataclass(frozen=True)
class SlotLost:
    """A slot that was lost with its host before it arrived; attributes as of `HostGoneError`."""

    reason: str
    node_is_doubted: bool


class HostLostError(RequeueError):
    """An environment host, or a server that it needs, was lost once too often, or no node took it in time. Exit status 75."""


class ClusterLostError(RequeueError):
    """The process that manages the cluster was lost; the newest checkpoint resumes the run. Exit status 75."""


class ReplayLostError(RequeueError):
    """Replay on another node was lost, with what it held; the newest checkpoint resumes the run. Exit status 75."""


class RemoteHost(Protocol):
    """One environment host, wherever it is: an `EnvironmentHost` behind calls that do not wait."""

    def call(self, group: Group, method: str, *arguments: Any) -> Call:
        """Starts a call of one of its methods. A result of `Engine.put` arrives as the array itself."""
        ...

    def kill(self) -> None:
        """Ends it at once, with its processes; none of its calls can succeed any more. Idempotent."""
        ...


class RemoteServer(RemoteHost, Protocol):
    """One inference server, wherever it is: an `ActionServer` behind calls that do not wait."""

    @property
    def link(self) -> Any:
        """Argument of a call of `use_server`, which arrives at an environment host as a `ServerLink`."""
        ...


class RemoteReplay(RemoteHost, Protocol):
    """Replay, wherever it is: a `ReplayHost` behind calls that do not wait."""

    def fetch(self, host: int, incarnation: int, slot: Call) -> Call:
        """Makes it fetch and stage a slot, as soon as there is one; what is fetched does not come through this process.

        Args:
            host: Host that makes it.
            incarnation: Incarnation of that host.
            slot: a call of the host's `next_slot`, which has ended or not.

        Returns:
            A call that ends with what `ReplayHost.stage` returns, or with a `SlotLost`.
        """
        ...


class Engine(Protocol):
    """A cluster, seen from the learner's process. One thread."""

    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes that are alive now, with the learner's own."""
        ...

    def reserved_node(self, kind: str, index: int) -> str | None:
        """Returns the node that has room reserved for a process of this kind (HOSTS, SERVERS or REPLAY of `bundles`).

        None while none has: its node died, and no other has room yet.
        """
        ...

    def check(self) -> None:
        """Checks without waiting that the cluster still works. The other calls may wait for a lost one for a while.

        Raises:
            ClusterLostError: If it does not; raised once, since processes that have started may still answer.
        """
        ...

    def spawn(self, host: int, node: str) -> RemoteHost:
        """Starts environment host number `host` on this node, without waiting."""
        ...

    def spawn_server(self, server: int, node: str, gpus: int) -> RemoteServer:
        """Starts inference server number `server` on this node, with this number of its GPUs (0: on the processor)."""
        ...

    def spawn_replay(self, node: str, slots: int) -> RemoteReplay:
        """Starts replay on this node, which may have this number of slots on their way to it at once."""
        ...

    def put(self, value: np.ndarray) -> Any:
        """Makes an array known to all nodes, each of which fetches it once, whatever the number of calls that have it."""
        ...

    def wait(self, calls: Sequence[Call], timeout_seconds: float) -> list[Call]:
        """Returns some calls that have ended; none if none has within `timeout_seconds`."""
        ...

    def get(self, call: Call) -> Any:
        """Returns the result of an ended call, arrays without a copy.

        Raises:
            HostGoneError: If the host is lost, and what it returned too.
            EnvPoolError: what the host itself raised.
        """
        ...


STATS_SECONDS = 1.0  # between questions
