"""What is done about environment hosts that are lost, silent, or have no node: within a budget, and with deadlines.

A host goes on where room is reserved for it. When its node dies the cluster moves that room, which takes as long as it takes to see
that the node is dead; until then the room seems to be where it was, and nothing is started there while the node is in doubt.
"""

import logging
import time
from collections.abc import Sequence

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.options import SupervisorOptions
from jaxsrl.cluster.hosts.host_handle import HostRecord, describe
from jaxsrl.cluster.protocol.engine import STATS_SECONDS, Engine, HostLostError
from jaxsrl.cluster.protocol.published_params import PublishedVersions

_LOG = logging.getLogger("jaxsrl.cluster")
_LOOK_SECONDS = 0.5  # between looks for a node that has room
_DOUBT_SECONDS = 30.0  # in which a cluster would have seen that a node is dead


class HostCare:
    """Starts lost hosts again. One thread, the learner's.

    Attributes:
        hosts_lost: so far.
    """

    def __init__(self, engine: Engine, options: SupervisorOptions) -> None:
        """Nothing lost yet.

        Args:
            engine: the cluster.
            options: how often a host may be lost and how long it may be silent: as a pool's workers.
        """
        self._engine, self._options = engine, options
        self._asked_at = 0.0
        self._doubted: dict[str, float] = {}  # until when a node may be dead, by its name
        self.hosts_lost = 0

    def lose(self, host: HostRecord, reason: str, node_is_doubted: bool = False) -> None:
        """Ends what is left of a host, and decides when it is started again.

        Args:
            host: that is lost.
            reason: in words.
            node_is_doubted: whether its node may be dead too.

        Raises:
            HostLostError: it was lost too often.
        """
        self.hosts_lost += 1
        if node_is_doubted:
            self._doubted[host.node] = time.monotonic() + _DOUBT_SECONDS
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
                self._start_again(host, reset, versions)
            self._require_answer(host, now)
        if now - self._asked_at >= STATS_SECONDS:
            self._asked_at = now
            for host in hosts:
                if host.has_begun:
                    host.ask_for_stats()

    def _start_again(self, host: HostRecord, reset: EpisodeReset | None, versions: PublishedVersions) -> None:
        now = time.monotonic()
        node = self._engine.reserved_node(host.index)
        if node is None or self._doubted.get(node, now) > now:
            self._require_node_in_time(host, now)
            host.due = now + _LOOK_SECONDS
            return
        host.spawn(self._engine, node)
        if reset is not None:
            host.begin(reset, versions)

    def _require_node_in_time(self, host: HostRecord, now: float) -> None:
        limit = self._options.start_timeout_seconds
        if now - host.lost_at > limit:
            sizes = ", ".join(f"{node.name}: {node.num_cores}" for node in self._engine.nodes()) or "there are none"
            raise HostLostError(
                f"{describe(host)} was lost, and after {limit:g} s (start_timeout_seconds of --run.supervision) no node has room "
                f"for it (cores of the nodes: {sizes}): add nodes, or use fewer --run.num-env-workers; the same command resumes"
            )

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
