"""The inference servers of a learner process: started, told of parameters, made known to hosts, and started again when lost.

A lost server costs time and nothing else: what its rows remembered follows from their slots (`remote_acting`), so that its
successor answers what it would have answered, at lag 0 and 1 to the bit.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from envpool_bridge.options import SupervisorOptions
from envpool_bridge.shm.packed_arrays import ParamsLayout
from jaxsrl.cluster.hosts.host_handle import HostRecord
from jaxsrl.cluster.inference.server_handle import ServerRecord
from jaxsrl.cluster.protocol.engine import STATS_SECONDS, Call, Engine, HostLostError, RemoteHost
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.metrics.cluster_traffic import PREFIX, SERVERS_LOST
from jaxsrl.plan.passes.place_inference import servers_of_hosts

_LOG = logging.getLogger("jaxsrl.cluster")
_LOOK_SECONDS = 0.5  # between looks for a node that has room
_DOUBT_SECONDS = 30.0  # in which a cluster would have seen that a node is dead
_OF_NODES = ("requests", "calls", "rows", "queued_seconds")


class InferenceServers:
    """The servers that act for some hosts of a plan. One thread, the learner's.

    Attributes:
        lost: so far.
    """

    def __init__(self, engine: Engine, config: CollectorConfig, params: ParamsLayout, hosts: range) -> None:
        """None started.

        Args:
            engine: the cluster.
            config: of the run's sources.
            params: layout of the flat parameters.
            hosts: of the plan, that ask these servers and no others.
        """
        self._engine, self._options = engine, config.supervision
        nodes = config.plan.inference.nodes
        self._records = [
            ServerRecord(config, params, index, nodes[index]) for index in servers_of_hosts(config.plan, hosts)
        ]
        self._known: dict[tuple[int, int], tuple[RemoteHost, RemoteHost]] = {}  # by host and server
        self._doubted: dict[str, float] = {}  # until when a node may be dead, by its name
        self._by_node: dict[str, dict[str, float]] = {record.node: {} for record in self._records}
        self._seconds = {"busy_seconds": 0.0, "idle_seconds": 0.0}
        self._asked_at = 0.0
        self.lost = 0

    def spawn(self) -> None:
        """Begins to start their processes."""
        for record in self._records:
            record.spawn(self._engine, record.node)

    def begin(self, versions: PublishedVersions) -> None:
        """Has all of them begin that there are."""
        for record in self._records:
            if record.remote is not None and not record.has_begun:
                record.begin(versions)

    def tell(self, version: int, put: Any) -> None:
        """Sends a version of the parameters to those that have begun."""
        for record in self._records:
            if record.has_begun:
                record.tell(version, put)

    def calls(self) -> dict[Call, ServerRecord]:
        """Those that have not been taken in, and whose they are."""
        return {call: record for record in self._records for call in record.calls()}

    def note(self, record: ServerRecord, call: Call, value: Any) -> None:
        """Takes in a call that has ended well."""
        if record.started is call:
            record.started = None
        elif record.asked is not None and record.asked[0] is call:
            record.asked = None
            self._count(record, value)
        elif call in record.told:
            record.told.remove(call)

    def lose(self, record: ServerRecord, reason: str, node_is_doubted: bool = False) -> None:
        """Ends what is left of a server, and decides when it is started again.

        Raises:
            HostLostError: it was lost too often.
        """
        self.lost += 1
        now, options = time.monotonic(), self._options
        if node_is_doubted:
            self._doubted[record.node] = now + _DOUBT_SECONDS
        wait = record.budget.grant(now, record.got_on)
        record.end()
        if wait is None:
            raise HostLostError(
                f"{record.described()} was lost more than {options.max_restarts} times within {options.window_seconds:g} s "
                f"(max_restarts, window_seconds of --run.supervision): look at the node. The last time: {reason}"
            )
        _LOG.warning("%s is lost (%s): it is started again where there is room.", record.described(), reason)
        record.due = now + wait

    def look_after(self, hosts: Sequence[HostRecord], versions: PublishedVersions, has_begun: bool) -> None:
        """Starts what is due, ends what is silent, and tells hosts of servers that are new to them; cheap if nothing is to do.

        Args:
            hosts: that ask.
            versions: that servers may have to act with.
            has_begun: whether the run has.

        Raises:
            HostLostError: no node has room for a server in time.
        """
        now = time.monotonic()
        for record in self._records:
            if record.due is not None and record.due <= now:
                self._start_again(record, now, versions, has_begun)
            self._require_answer(record, now)
        for host in hosts:
            self._introduce(host)
        if now - self._asked_at >= STATS_SECONDS:
            self._asked_at = now
            for record in self._records:
                if record.has_begun:
                    record.ask_for_stats()

    def totals(self) -> dict[str, float]:
        """Since the run began, by metric name: of each node, and of all inference together."""
        found = {
            f"{PREFIX}{node}/{name}": sums.get(name, 0.0) for node, sums in self._by_node.items() for name in _OF_NODES
        }
        number = len(self._records)
        return {
            **found,
            "inference/calls": sum(sums.get("calls", 0.0) for sums in self._by_node.values()),
            "inference/rows": sum(sums.get("rows", 0.0) for sums in self._by_node.values()),
            "inference/busy_seconds": self._seconds["busy_seconds"] / number,
            "inference/wait_seconds": self._seconds["idle_seconds"] / number,
            SERVERS_LOST: float(self.lost),
        }

    def close(self) -> None:
        """Ends them; idempotent."""
        for record in self._records:
            record.end()

    def _introduce(self, host: HostRecord) -> None:
        """Tells a host how to reach every server that it does not know yet, or no longer."""
        if host.remote is None or not host.has_begun:
            return
        for record in self._records:
            if record.remote is None:
                continue
            known = self._known.get((host.index, record.index))
            if known is None or known[0] is not host.remote or known[1] is not record.remote:
                self._known[host.index, record.index] = (host.remote, record.remote)
                host.told.append(host.remote.call("control", "use_server", record.index, record.remote.link))

    def _start_again(self, record: ServerRecord, now: float, versions: PublishedVersions, has_begun: bool) -> None:
        node = self._engine.server_node(record.index)
        if node is None or self._doubted.get(node, now) > now:
            limit = self._options.start_timeout_seconds
            if now - record.lost_at > limit:
                raise HostLostError(
                    f"{record.described()} was lost, and after {limit:g} s (start_timeout_seconds of --run.supervision) no node "
                    f"has room for it: add nodes, or use fewer --run.cluster-inference-servers; the same command resumes"
                )
            record.due = now + _LOOK_SECONDS
            return
        record.spawn(self._engine, node)
        if has_begun:
            record.begin(versions)

    def _require_answer(self, record: ServerRecord, now: float) -> None:
        """A server that does not answer is as good as lost; one that has not begun yet has longer."""
        if record.asked is None:
            return
        limit, setting = _limit_of(self._options, record.started is None)
        # Who asks may have been busy: what was answered meanwhile has only not been taken in.
        if now - record.asked[1] > limit and not self._engine.wait([record.asked[0]], 0.0):
            self.lose(record, f"it did not answer for {limit:g} s ({setting})")

    def _count(self, record: ServerRecord, stats: Mapping[str, float]) -> None:
        """Adds what was done since the answer before."""
        sums = self._by_node.setdefault(record.node, {})
        for name, value in stats.items():
            gained = value - record.stats.get(name, 0.0)
            where = self._seconds if name in self._seconds else sums
            where[name] = where.get(name, 0.0) + gained
        record.stats = dict(stats)


def _limit_of(options: SupervisorOptions, begun: bool) -> tuple[float, str]:
    if begun:
        return options.step_timeout_seconds, "step_timeout_seconds"
    return options.start_timeout_seconds, "start_timeout_seconds"
