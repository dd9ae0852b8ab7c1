"""What carries calls and bytes between the learner and its environment hosts. Ray is one (`ray_engine`); tests bring another."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from envpool_bridge.errors import EnvPoolError
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
    """That a slot did not come to where it was to go, because its host is no more; attributes as of `HostGoneError`."""

    reason: str
    node_is_doubted: bool


class HostLostError(EnvPoolError):
    """An environment host, or a server that it needs, was lost once too often, or no node took it in time."""


class ReplayLostError(RequeueError):
    """Replay on another node was lost, with what it held; the newest checkpoint resumes the run. Exit status 75."""


class RemoteHost(Protocol):
    """One environment host, wherever it is: an `EnvironmentHost` behind calls that do not wait."""

    def call(self, group: Group, method: str, *arguments: Any) -> Call:
        """Begins a call of one of its methods. What `Engine.put` returned arrives as what was put."""
        ...

    def kill(self) -> None:
        """Ends it at once, with its processes; none of its calls can succeed any more. Idempotent."""
        ...


class RemoteServer(RemoteHost, Protocol):
    """One inference server, wherever it is: an `ActionServer` behind calls that do not wait."""

    @property
    def link(self) -> Any:
        """What arrives as a `remote_acting.ServerLink` at an environment host, when it is an argument of a call of `use_server`."""
        ...


class RemoteReplay(RemoteHost, Protocol):
    """Replay, wherever it is: a `ReplayHost` behind calls that do not wait."""

    def fetch(self, host: int, beginning: int, slot: Call) -> Call:
        """Has it fetch and stage a slot, as soon as there is one; what is fetched does not come through this process.

        Args:
            host: that makes it.
            beginning: of that host.
            slot: a call of the host's `next_slot`, which has ended or not.

        Returns:
            A call that ends with what `ReplayHost.stage` returns, or with a `SlotLost`.
        """
        ...


class Engine(Protocol):
    """A cluster, seen from the learner's process. One thread."""

    def nodes(self) -> tuple[Node, ...]:
        """Those that are alive now, the learner's own too."""
        ...

    def reserved_node(self, host: int) -> str | None:
        """The node that has room reserved for this host; None while none has: it died, and no other has room yet."""
        ...

    def spawn(self, host: int, node: str) -> RemoteHost:
        """Begins to start environment host number `host` on this node."""
        ...

    def server_node(self, server: int) -> str | None:
        """As `reserved_node`, of an inference server."""
        ...

    def spawn_server(self, server: int, node: str, gpus: int) -> RemoteServer:
        """Begins to start inference server number `server` on this node, with so many of its GPUs (0: on the processor)."""
        ...

    def replay_node(self) -> str | None:
        """As `reserved_node`, of replay."""
        ...

    def spawn_replay(self, node: str, slots: int) -> RemoteReplay:
        """Begins to start replay on this node, which may have so many slots on their way to it at once."""
        ...

    def put(self, value: np.ndarray) -> Any:
        """Makes an array known to all nodes, each of which fetches it once, whatever the number of calls that have it."""
        ...

    def wait(self, calls: Sequence[Call], timeout_seconds: float) -> list[Call]:
        """Some calls that have ended; none if none has within `timeout_seconds`."""
        ...

    def get(self, call: Call) -> Any:
        """What an ended call returned, arrays without a copy.

        Raises:
            HostGoneError: the host is lost, and what it returned too.
            EnvPoolError: what the host itself raised.
        """
        ...

    def close(self) -> None:
        """Lets go of the cluster; idempotent."""
        ...


STATS_SECONDS = 1.0  # between questions
