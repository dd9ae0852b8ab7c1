"""The inference servers of a learner process: started, given parameters, made known to hosts, and restarted when lost.

A lost server costs only time. The recurrent states of its rows follow from their slots (`jaxsrl.cluster.inference.client`), so that
its successor returns the same actions: at lag 0 and 1 bit for bit.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from envpool_bridge.envs.protocol import EpisodeReset
from jaxsrl.cluster.handle import Handle, RestartManager, usage_by_node
from jaxsrl.cluster.hosts.host_handle import HostHandle
from jaxsrl.cluster.protocol.bundles import SERVERS
from jaxsrl.cluster.protocol.engine import Call, Engine, RemoteHost, RemoteServer
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.cluster.protocol.setup import make_setup
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.metrics.cluster_traffic import PREFIX, SERVERS_LOST
from jaxsrl.plan.fragment import Devices
from jaxsrl.plan.passes.place_inference import lanes_of_server, servers_of_hosts

_NO_EPISODES = EpisodeReset((), ())
_PER_NODE = ("requests", "calls", "rows", "queued_seconds")


class ServerHandle(Handle[RemoteServer]):
    """One inference server of a plan."""

    kind = "inference server"
    room = SERVERS
    advice = "--cluster.num-inference-servers"

    def __init__(self, config: CollectorConfig, index: int, node: str) -> None:
        lanes, size = lanes_of_server(config.plan, index), config.plan.shape.rows_per_lane
        super().__init__(config.supervision, index, node, slice(lanes.start * size, lanes.stop * size))
        # A server makes no environment and holds no recurrent state: each request brings that along.
        self._config = dataclasses.replace(config, env_source=None, agent_state=None)  # pyright: ignore[reportArgumentType]

    @property
    def made_progress(self) -> bool:
        return self.stats.get("requests", 0.0) > 0.0

    def spawn_process(self, engine: Engine, node: str) -> RemoteServer:
        placement = self._config.plan.inference.placement
        on_gpu = isinstance(placement, Devices) and placement.platform == "gpu"
        return engine.spawn_server(self.index, node, int(on_gpu))

    def start(self, versions: PublishedVersions) -> None:
        """Starts to act, with the versions of the parameters that it may need."""
        first_version = versions.held[0][0]
        self.start_with(make_setup(self._config, self.index, first_version, _NO_EPISODES, self.incarnation), versions)


class InferenceServerGroup:
    """The servers that act for some hosts of a plan; none where hosts act themselves. Thread-safety: one thread, the learner's.

    Args:
        engine: the cluster.
        config: Configuration of the run's collectors.
        hosts: Hosts of the plan, that call these servers and no others.

    Attributes:
        handles: Handles of the servers.
    """

    def __init__(self, engine: Engine, config: CollectorConfig, hosts: range) -> None:
        self._engine = engine
        plan = config.plan
        indices = servers_of_hosts(plan, hosts) if plan.calls_servers else ()
        self.handles = [ServerHandle(config, index, plan.inference.nodes[index]) for index in indices]
        self._restarts = RestartManager(engine, config.supervision)
        self._connected: dict[tuple[int, int], tuple[RemoteHost, RemoteHost]] = {}  # by host and server
        self._by_node: dict[str, dict[str, float]] = {server.node: {} for server in self.handles}
        self._seconds = {"busy_seconds": 0.0, "idle_seconds": 0.0}

    def spawn(self) -> None:
        """Starts their processes, without waiting."""
        for server in self.handles:
            server.spawn(self._engine, server.node)

    def start(self, versions: PublishedVersions) -> None:
        """Starts all of them that have a process."""
        for server in self.handles:
            if server.remote is not None and not server.is_started:
                server.start(versions)

    def calls(self) -> dict[Call, ServerHandle]:
        """Returns the calls whose results have not been taken, with their server."""
        return {call: server for server in self.handles for call in server.calls()}

    def on_result(self, server: ServerHandle, call: Call, value: Any) -> None:
        """Takes the result of a call."""
        before = server.stats
        server.on_result(call, value)
        if server.stats is not before:
            self._count(server, before)

    def mark_lost(self, server: ServerHandle, reason: str, node_is_doubted: bool = False) -> None:
        """Ends what is left of a server, and schedules its restart; raises HostLostError if it was lost too often."""
        self._restarts.mark_lost(server, reason, node_is_doubted)

    def poll(self, hosts: Sequence[HostHandle], versions: PublishedVersions, is_started: bool) -> None:
        """Restarts servers, and connects hosts with servers that are new to them; cheap when there is nothing to do.

        Args:
            hosts: Hosts that call the servers.
            versions: Versions of the parameters that servers may need.
            is_started: whether the run has started.

        Raises:
            HostLostError: see `RestartManager.poll`.
        """
        self._restarts.poll(self.handles, lambda server: server.start(versions) if is_started else None)
        for host in hosts:
            self._connect(host)

    def totals(self) -> dict[str, float]:
        """Returns totals since the start, by metric name: of each node, and of all inference together; {} without servers."""
        if not self.handles:
            return {}
        per_node = {
            f"{PREFIX}{node}/{name}": sums.get(name, 0.0) for node, sums in self._by_node.items() for name in _PER_NODE
        }
        number = len(self.handles)
        return {
            **per_node,
            **usage_by_node(self.handles, "servers"),
            "inference/calls": sum(sums.get("calls", 0.0) for sums in self._by_node.values()),
            "inference/rows": sum(sums.get("rows", 0.0) for sums in self._by_node.values()),
            "inference/busy_seconds": self._seconds["busy_seconds"] / number,
            "inference/wait_seconds": self._seconds["idle_seconds"] / number,
            SERVERS_LOST: float(self._restarts.num_lost),
        }

    def close(self) -> None:
        """Ends them; idempotent."""
        for server in self.handles:
            server.kill()

    def _connect(self, host: HostHandle) -> None:
        """Sends a host the address of every server that it does not know yet, or no longer."""
        if host.remote is None or not host.is_started:
            return
        for server in self.handles:
            if server.remote is None:
                continue
            known = self._connected.get((host.index, server.index))
            if known is None or known[0] is not host.remote or known[1] is not server.remote:
                self._connected[host.index, server.index] = (host.remote, server.remote)
                host.publishes.append(host.remote.call("control", "use_server", server.index, server.remote.link))

    def _count(self, server: ServerHandle, before: Mapping[str, float]) -> None:
        """Adds the difference to the stats before."""
        sums = self._by_node.setdefault(server.node, {})
        for name, value in server.stats.items():
            where = self._seconds if name in self._seconds else sums
            where[name] = where.get(name, 0.0) + value - before.get(name, 0.0)
