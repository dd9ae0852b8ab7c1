"""Handles of a run's remote processes, and their restarts within a budget and with timeouts.

A process restarts where room is reserved for it. When its node dies, the cluster moves that room as soon as it sees that the
node is dead. Until then the room seems to be where it was, and nothing is started there while the node is in doubt.
"""

import abc
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from envpool_bridge.envs.suites.registry import dumps_with_registrations
from envpool_bridge.errors import EnvPoolError
from envpool_bridge.options import RestartBudget, SupervisorOptions
from jaxsrl.cluster.protocol.engine import STATS_SECONDS, Call, Engine, HostLostError, RemoteHost
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.metrics.cluster_traffic import PREFIX

_LOG = logging.getLogger("jaxsrl.cluster")
_POLL_SECONDS = 0.5  # between looks for a node that has room
_DOUBT_SECONDS = 30.0  # in which a cluster would have seen that a node is dead
_SAY_SECONDS = 30.0  # between lines about a process that the run waits for

RemoteT = TypeVar("RemoteT", bound=RemoteHost)


class Handle(abc.ABC, Generic[RemoteT]):
    """One environment host, inference server or replay of a plan, through all of its incarnations. Thread-safety: one thread.

    Attributes:
        index: number of the process in the plan.
        node: Node of the process, now or last.
        rows: Rows of the run, that it acts for.
        remote: the process; None while there is none.
        incarnation: number of starts so far.
        is_started: whether `start` was called since the process was spawned.
        start_call: the call that starts it, until that has ended.
        started_at: when the result of the newest `start_call` was taken.
        publishes: calls that carry versions of the parameters.
        stats: newest answer of this incarnation.
        past_stats: sums over earlier incarnations.
        stats_call: the pending request for stats, and when it was sent.
        restart_at: when to restart it; None unless it is lost.
        lost_at: when it was lost.
        reported_at: when a line said that the run waits for it.
        budget: Budget of restarts.
    """

    kind: ClassVar[str]
    room: ClassVar[str]
    """Kind of the bundles that are reserved for it."""
    advice: ClassVar[str]
    """What to change where no node has room."""

    def __init__(self, options: SupervisorOptions, index: int, node: str, rows: slice) -> None:
        self.index, self.node, self.rows, self._options = index, node, rows, options
        self.remote: RemoteT | None = None
        self.incarnation, self.is_started = 0, False
        self.start_call: Call | None = None
        self.started_at = 0.0
        self.publishes: list[Call] = []
        self.stats: dict[str, float] = {}
        self.past_stats: dict[str, float] = {}
        self.stats_call: tuple[Call, float] | None = None
        self.restart_at: float | None = None
        self.lost_at = self.reported_at = 0.0
        self.budget = RestartBudget(options.max_restarts, options.window_seconds, options.max_backoff_seconds)

    @property
    @abc.abstractmethod
    def made_progress(self) -> bool:
        """True if this incarnation did useful work."""

    @abc.abstractmethod
    def spawn_process(self, engine: Engine, node: str) -> RemoteT:
        """Starts its process."""

    def spawn(self, engine: Engine, node: str) -> None:
        """Starts its process, without waiting; `start` comes next."""
        self.node, self.restart_at = node, None
        self.remote = self.spawn_process(engine, node)

    def start_with(self, setup: Any, versions: PublishedVersions | None) -> None:
        """Sends the setup (a HostSetup or ReplaySetup), pickled, and the versions of the parameters that it may need."""
        if self.remote is None:
            raise RuntimeError("spawn comes first")
        self.incarnation += 1
        self.is_started, self.stats_call = True, None
        self.start_call = self.remote.call("control", "start", dumps_with_registrations(setup))
        for version, put in versions.held if versions is not None else ():
            self.publish(version, put)

    def publish(self, version: int, put: Any) -> None:
        """Sends a version of the parameters."""
        if self.remote is not None:
            self.publishes.append(self.remote.call("control", "publish", version, put))

    def request_stats(self) -> None:
        """Requests stats, unless a request is pending."""
        if self.remote is not None and self.is_started and self.stats_call is None:
            self.stats_call = (self.remote.call("control", "stats"), time.monotonic())

    def calls(self) -> list[Call]:
        """Returns the calls whose results have not been taken."""
        starts = [] if self.start_call is None else [self.start_call]
        stats = [] if self.stats_call is None else [self.stats_call[0]]
        return [*self.publishes, *starts, *stats]

    def on_result(self, call: Call, value: Any) -> bool:
        """Takes the result of a call; returns whether it was one of `calls`."""
        if self.start_call is call:
            self.start_call, self.started_at = None, time.monotonic()
        elif self.stats_call is not None and self.stats_call[0] is call:
            self.stats_call, self.stats = None, dict(value)
        elif call in self.publishes:
            self.publishes.remove(call)
        else:
            return False
        return True

    def total_stats(self) -> dict[str, float]:
        """Returns the stats summed over all incarnations."""
        names = {**self.stats, **self.past_stats}
        return {name: self.stats.get(name, 0.0) + self.past_stats.get(name, 0.0) for name in names}

    @property
    def waits_since(self) -> float | None:
        """Returns since when it is lost, or has not answered; None if it runs."""
        if self.restart_at is not None:
            return self.lost_at
        # Stats that were requested during a slow start are answered after it.
        return None if self.stats_call is None else max(self.stats_call[1], self.started_at)

    def kill(self) -> None:
        """Ends the process, with everything that it had not handed over; idempotent."""
        if self.remote is not None:
            self.remote.kill()
        self.remote, self.start_call, self.stats_call, self.is_started = None, None, None, False
        self.past_stats, self.stats, self.publishes = self.total_stats(), {}, []
        self.lost_at = time.monotonic()

    def lost_error(self, reason: str) -> EnvPoolError:
        """Returns the error of a process that was lost, for `reason`, and has no restart left."""
        options = self._options
        return HostLostError(
            f"{self.describe()} was lost more than {options.max_restarts} times within {options.window_seconds:g} s "
            f"(max_restarts, window_seconds of --pool.supervision). The last time: {reason}. Look at the memory and the logs of "
            f"that node, then start the same command again: it resumes from the newest checkpoint"
        )

    def describe(self) -> str:
        """Returns a description of the process, for messages."""
        return f"{self.kind} {self.index} (rows {self.rows.start} to {self.rows.stop - 1}) on node {self.node}"


def usage_by_node(handles: Sequence[Handle[Any]], kind: str) -> dict[str, float]:
    """Returns the CPU seconds and the memory of these processes by metric name: `cluster/NODE/KIND/...`."""
    totals: dict[str, float] = {}
    for handle in handles:
        for quantity in ("cpu_seconds", "memory_bytes"):
            if quantity in handle.stats:
                name = f"{PREFIX}{handle.node}/{kind}/{quantity}"
                totals[name] = totals.get(name, 0.0) + handle.stats[quantity]
    return totals


class RestartManager:
    """Restarts lost processes. Thread-safety: one thread, the learner's.

    Args:
        engine: the cluster.
        options: budget and timeouts, as of a pool's workers.

    Attributes:
        num_lost: processes lost so far.
    """

    def __init__(self, engine: Engine, options: SupervisorOptions) -> None:
        self.num_lost = 0
        self._engine, self._options = engine, options
        self._requested_at = 0.0
        self._doubted: dict[str, float] = {}  # until when a node may be dead, by its name

    def mark_lost(self, handle: Handle[Any], reason: str, node_is_doubted: bool = False) -> None:
        """Ends what is left of a process, and schedules its restart.

        Args:
            handle: Handle of the lost process.
            reason: Reason for the message.
            node_is_doubted: whether its node may be dead too.

        Raises:
            HostLostError: If it was lost too often (ReplayLostError: replay was lost).
        """
        self.num_lost += 1
        now, made_progress = time.monotonic(), handle.made_progress
        if node_is_doubted:
            self._doubted[handle.node] = now + _DOUBT_SECONDS
        handle.kill()
        wait = handle.budget.grant(now, made_progress)
        if wait is None:
            raise handle.lost_error(reason)
        _LOG.warning("%s is lost (%s): it is started again where there is room.", handle.describe(), reason)
        handle.restart_at = now + wait

    def poll(self, handles: Sequence[Handle[Any]], start: Callable[[Any], None]) -> None:
        """Restarts what is due, ends what is silent, and requests stats; cheap when there is nothing to do.

        Args:
            handles: Handles of all processes of a kind.
            start: starts a process that was spawned again, if the run has started.

        Raises:
            HostLostError: If a process was lost too often, or no node has had room for it in time.
            ClusterLostError: If the cluster is lost.
        """
        self._engine.check()
        now = time.monotonic()
        for handle in handles:
            if handle.restart_at is not None and handle.restart_at <= now:
                self._restart(handle, start, now)
            self._check_silence(handle, now)
            _report_wait(handle, now)
        if now - self._requested_at >= STATS_SECONDS:
            self._requested_at = now
            for handle in handles:
                handle.request_stats()

    def _restart(self, handle: Handle[Any], start: Callable[[Any], None], now: float) -> None:
        node = self._engine.reserved_node(handle.room, handle.index)
        if node is not None and self._doubted.get(node, now) <= now:
            handle.spawn(self._engine, node)
            start(handle)
            return
        limit = self._options.start_timeout_seconds
        if now - handle.lost_at > limit:
            sizes = ", ".join(f"{node.name}: {node.num_cores}" for node in self._engine.nodes()) or "there are none"
            raise HostLostError(
                f"{handle.describe()} was lost, and after {limit:g} s (start_timeout_seconds of --pool.supervision) no node has "
                f"room for it (cores of the nodes: {sizes}): add nodes, or use fewer {handle.advice}; the same command resumes"
            )
        handle.restart_at = now + _POLL_SECONDS

    def _check_silence(self, handle: Handle[Any], now: float) -> None:
        """Treats a process that does not answer as lost; one that is still starting has longer."""
        if handle.stats_call is None:
            return
        setting = "step_timeout_seconds" if handle.start_call is None else "start_timeout_seconds"
        limit, call, since = float(getattr(self._options, setting)), handle.stats_call[0], handle.waits_since
        # This thread may have been busy: an answer may have come that was not taken yet.
        if since is not None and now - since > limit and not self._engine.wait([call], 0.0):
            self.mark_lost(handle, f"it did not answer for {limit:g} s ({setting})")


def _report_wait(handle: Handle[Any], now: float) -> None:
    since = handle.waits_since
    if since is not None and now - max(since, handle.reported_at) >= _SAY_SECONDS:
        handle.reported_at = now
        reason = "it does not answer" if handle.start_call is None else "it starts"
        reason = reason if handle.restart_at is None else "no node has room for it yet"
        _LOG.warning("The run waits for %s for %.0f s: %s.", handle.describe(), now - since, reason)
