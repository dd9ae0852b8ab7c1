"""Host side of inference servers on other nodes: requests for the lanes of a host's pool. It knows no engine.

Each ready lane has one open request, and its answer is posted at once; no lane waits for another. The loss of a server
changes no result. Its lanes wait for the next server, which receives their agent state from the start of the slot and
requests for all steps of the slot so far. With the same parameters it gives the same answers.
"""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from envpool_bridge.errors import EnvPoolError
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm.slots import ActRows
from envpool_bridge.spec.tree import Tree, map_leaves, take, write
from jaxsrl.cluster.inference.messages import ActingMessages
from jaxsrl.cluster.protocol.engine import HostGoneError

_WAIT_SECONDS = 0.2
_AGAIN_SECONDS = 0.2  # before a server that did not answer is asked again
_SAME_LOSS_SECONDS = 60.0  # failures of a server within this time are one loss
LIVES = 1_000_000
"""Servers and attempts that one incarnation of a host may see."""


class ServerLink(Protocol):
    """A way to one inference server."""

    def ask(self, request: np.ndarray) -> "Future[np.ndarray]":
        """Sends a request without waiting. The answer raises HostGoneError if the server is lost, else what it raised."""
        ...


@dataclasses.dataclass
class _Server:
    """The state of one server, as a host sees it.

    Attributes:
        link: Link to it; None before the first.
        serial: grows with every link and every failure: lanes that another serial served are not known to it.
        since: when the loss began, if it is lost: at the last answer or new link, or at the first failure long after that.
        not_before: when it may be asked again.
    """

    link: ServerLink | None = None
    serial: int = 0
    since: float = dataclasses.field(default_factory=time.monotonic)
    not_before: float = 0.0
    failure: str = "none was named"


@dataclasses.dataclass
class _Lane:
    """A lane of the pool.

    Attributes:
        server: Server that acts for it.
        begins_with: [R, ...] a leaf, what its rows remembered before the current slot's first step.
        known_to: serial of the server that knows what the rows remember now.
        next_step: Next step to be asked for.
        asked: (serial, step) under way.
    """

    server: int
    begins_with: Tree
    known_to: int = 0
    next_step: int = -1
    asked: tuple[int, int] | None = None


class RemoteActing:
    """Acts for all lanes of a pool. Thread-safety: `run` in one thread; `use` from any; `stop` when `run` has ended.

    Args:
        pool: Pool of the lanes.
        messages: Messages of lanes of its size.
        agent_state: [R, ...] a leaf, what the pool's rows remember.
        servers: the number of the server that acts for each lane.
        first_lane: Number in the run of the pool's first lane.
        incarnation: Incarnation of the host.
        limit_seconds: longest that a lane may wait for a server.
    """

    def __init__(
        self,
        pool: EnvPool,
        messages: ActingMessages,
        agent_state: Tree,
        servers: list[int],
        first_lane: int,
        incarnation: int,
        limit_seconds: float,
    ) -> None:
        self._pool, self._messages, self._first_lane, self._limit = pool, messages, first_lane, limit_seconds
        self._lives = incarnation * LIVES
        states = [take(agent_state, pool.shape.lane_rows(lane)) for lane in range(pool.num_lanes)]
        self._lanes = [
            _Lane(server, map_leaves(np.array, state)) for server, state in zip(servers, states, strict=True)
        ]
        self._servers = {server: _Server() for server in servers}
        self._answers: deque[tuple[int, int, int, Future[np.ndarray]]] = deque()  # lane, serial, step
        self._lock = threading.Lock()
        self._stopped = False
        self.requests, self.failures = 0, 0

    def use(self, server: int, link: ServerLink) -> None:
        """Sets the link to a server."""
        with self._lock:
            if server in self._servers:
                known = self._servers[server]
                known.link, known.not_before, known.since = link, 0.0, time.monotonic()
                known.serial += 1
        self._wake()

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Asks and posts until `should_stop()`.

        Raises:
            EnvPoolError: If an environment failed, or there was no server for too long.
            RuntimeError: what a server raised.
        """
        while not should_stop():
            self._pool.wait_acting(self._has_work, _WAIT_SECONDS)
            while self._answers:
                self._take_answer(*self._answers.popleft())
            for lane in self._to_ask():
                self._ask(lane)
            self._require_servers()

    def stop(self) -> None:
        """Answers that still come are left alone: the pool may be closed after this."""
        with self._lock:
            self._stopped = True

    def _wake(self) -> None:
        with self._lock:
            if not self._stopped:
                self._pool.wake()

    def _has_work(self) -> bool:
        return bool(self._answers) or bool(self._to_ask())

    def _to_ask(self) -> list[int]:
        """Returns the ready lanes without an open request whose server can take one."""
        lanes: list[int] = []
        for lane in self._pool.ready_lanes():
            record = self._lanes[lane]
            server = self._servers[record.server]
            under_way = record.asked is not None and record.asked[0] == server.serial
            if not under_way and server.link is not None and time.monotonic() >= server.not_before:
                lanes.append(lane)
        return lanes

    def _ask(self, lane: int) -> None:
        record = self._lanes[lane]
        server = self._servers[record.server]
        with self._lock:
            link, serial = server.link, server.serial
        if link is None:
            return
        length = self._pool.shape.rollout_length
        sequence, t = self._pool.position(lane)
        state: Tree | None = None
        if record.known_to != serial:
            record.known_to = serial
            # What rows remember follows from the start of the slot and what they have seen since.
            record.next_step = sequence * length
            state = record.begins_with
        step = max(record.next_step, sequence * length) if self._messages.remembers else sequence * length + t
        seen = self._act_rows(lane, sequence, step - sequence * length)
        request = self._messages.pack_request(self._lives + serial, self._first_lane + lane, step, seen, state)
        record.asked = (serial, step)
        self.requests += 1

        def answered(answer: "Future[np.ndarray]") -> None:
            self._answers.append((lane, serial, step, answer))
            self._wake()

        link.ask(request).add_done_callback(answered)

    def _take_answer(self, lane: int, serial: int, step: int, answer: "Future[np.ndarray]") -> None:
        record = self._lanes[lane]
        server = self._servers[record.server]
        error = answer.exception()
        if isinstance(error, HostGoneError):
            self._fail(server, serial, error)
        elif error is not None and serial == server.serial:
            raise error
        if error is not None or record.asked != (serial, step):
            return  # the lane is asked for again, or has been
        record.asked, server.since = None, time.monotonic()
        record.next_step = step + 1
        sequence, t = self._pool.position(lane)
        if step == sequence * self._pool.shape.rollout_length + t:
            self._post(lane, record, sequence, t, answer.result())

    def _fail(self, server: _Server, serial: int, error: BaseException) -> None:
        """Marks a server as lost until its successor is linked or it answers again."""
        with self._lock:
            if server.serial == serial:
                now = time.monotonic()
                if now - max(server.since, server.not_before) > _SAME_LOSS_SECONDS:
                    server.since = now  # it was there while the lanes waited for parameters
                server.serial += 1
                server.not_before = now + _AGAIN_SECONDS
                server.failure = str(error)
                self.failures += 1

    def _post(self, lane: int, record: _Lane, sequence: int, t: int, block: np.ndarray) -> None:
        answer = self._messages.read_answer(block)
        acting = self._act_rows(lane, sequence, t)
        acting.write(answer.action, answer.extras, answer.version)
        if acting.state_before is not None:
            write(acting.state_before, record.begins_with)
        if acting.state_after is not None and answer.agent_state is not None:
            write(acting.state_after, answer.agent_state)
            record.begins_with = map_leaves(np.array, answer.agent_state)
        self._pool.post_actions(lane)

    def _act_rows(self, lane: int, sequence: int, t: int) -> ActRows:
        slot = self._pool.views[sequence % self._pool.shape.num_slots]
        return self._pool.access.act_rows(slot, t, self._pool.shape.lane_rows(lane))

    def _require_servers(self) -> None:
        """Raises if a server stays lost for too long; a wait for parameters has no limit here."""
        for number, server in self._servers.items():
            lost = server.link is None or server.not_before > time.monotonic() - 2.0 * _AGAIN_SECONDS
            if lost and time.monotonic() - server.since > self._limit:
                raise EnvPoolError(
                    f"no inference server {number} was there for {self._limit:g} s: look at the cluster; the last failure: "
                    f"{server.failure}"
                )

    @property
    def totals(self) -> Mapping[str, float]:
        """Requests sent, and servers that were lost."""
        return {"inference/requests": float(self.requests), "inference/failures": float(self.failures)}
