"""What is done about environment hosts that are lost, silent, or have no node: within a budget, and with deadlines."""

import logging
import time
from collections.abc import Mapping, Sequence

from envpool_bridge.adapters.rows import EpisodeReset
from envpool_bridge.errors import UserError
from envpool_bridge.supervisor_options import SupervisorOptions
from jaxsrl.cluster.engine import Engine, HostLostError
from jaxsrl.cluster.host_record import STATS_SECONDS, HostRecord, describe
from jaxsrl.cluster.parameters import PublishedVersions
from jaxsrl.dataflow.nodes import place_hosts

_LOG = logging.getLogger("jaxsrl.cluster")
_LOOK_SECONDS = 0.5  # between looks for a node that has room
_AVOID_SECONDS = 30.0  # that a node on which a host was lost comes last


class HostCare:
    """Starts lost hosts again. One thread, the learner's.

    Attributes:
        hosts_lost: so far.
    """

    def __init__(self, engine: Engine, options: SupervisorOptions, cores: int) -> None:
        """Nothing lost yet.

        Args:
            engine: the cluster.
            options: how often a host may be lost and how long it may be silent: as a pool's workers.
            cores: that a host takes of its node.
        """
        self._engine, self._options, self._cores = engine, options, cores
        self._asked_at = 0.0
        self._lost_on: dict[str, float] = {}  # when a host was lost on a node, by its name
        self.hosts_lost = 0

    def lose(self, host: HostRecord, reason: str) -> None:
        """Ends what is left of a host, and decides when it is started again.

        Raises:
            HostLostError: it was lost too often.
        """
        self.hosts_lost += 1
        self._lost_on[host.node] = time.monotonic()
        got_on = host.got_on
        host.lose()
        options, now = self._options, time.monotonic()
        wait = host.budget.grant(now, got_on)
        if wait is None:
            raise HostLostError(
                f"{describe(host)} was lost more than {options.max_restarts} times within {options.window_seconds:g} s "
                f"(max_restarts, window_seconds of --run.supervision): look at the node. The last time: {reason}"
            )
        _LOG.warning("%s is lost (%s): it is started again where there is room.", describe(host), reason)
        host.due = now + wait

    def look_after(self, hosts: Sequence[HostRecord], reset: EpisodeReset | None, versions: PublishedVersions) -> None:
        """Starts what is due, ends what is silent, and asks how they are; cheap when nothing is to be done.

        Args:
            hosts: all of the run.
            reset: as the run began; None before that, when hosts are only spawned.
            versions: that hosts may have to act with.

        Raises:
            HostLostError: no node has room for a host in time.
        """
        now = time.monotonic()
        for host in hosts:
            if host.due is not None and host.due <= now:
                self._start_again(host, hosts, reset, versions)
            self._require_answer(host, now)
        if now - self._asked_at >= STATS_SECONDS:
            self._asked_at = now
            for host in hosts:
                if host.has_begun:
                    host.ask_for_stats()

    def _start_again(
        self, host: HostRecord, hosts: Sequence[HostRecord], reset: EpisodeReset | None, versions: PublishedVersions
    ) -> None:
        used: dict[str, int] = {}
        for other in hosts:
            if other.remote is not None:
                used[other.node] = used.get(other.node, 0) + self._cores
        now = time.monotonic()
        try:
            node = self._choose_node(used, now)
        except UserError as error:
            limit = self._options.start_timeout_seconds
            if now - host.lost_at > limit:
                raise HostLostError(
                    f"{describe(host)} was lost, and after {limit:g} s (start_timeout_seconds): {error}"
                ) from error
            host.due = now + _LOOK_SECONDS
            return
        host.spawn(self._engine, node)
        if reset is not None:
            host.begin(reset, versions)

    def _choose_node(self, used: Mapping[str, int], now: float) -> str:
        """Where nothing was lost of late, if there is room: a cluster takes its time to see that a node is dead."""
        nodes = self._engine.nodes()
        trusted = [node for node in nodes if now - self._lost_on.get(node.name, now - _AVOID_SECONDS) >= _AVOID_SECONDS]
        try:
            (node,) = place_hosts(trusted, 1, self._cores, used)
        except UserError:
            (node,) = place_hosts(nodes, 1, self._cores, used)
        return node

    def _require_answer(self, host: HostRecord, now: float) -> None:
        """A host that does not answer is as good as lost; one that has not begun yet has longer."""
        if host.asked is None:
            return
        begun = host.started is None
        limit = self._options.step_timeout_seconds if begun else self._options.start_timeout_seconds
        # Who asks may have been busy: what was answered meanwhile has only not been taken in.
        if now - host.asked[1] > limit and not self._engine.wait([host.asked[0]], 0.0):
            setting = "step_timeout_seconds" if begun else "start_timeout_seconds"
            self.lose(host, f"it did not answer for {limit:g} s ({setting})")
