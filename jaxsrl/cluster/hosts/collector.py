"""Trajectories from environment hosts on the nodes of a cluster: the learner's side.

Every host has as many credits as a slot ring has slots: calls of `next_slot` that it may answer. A credit is given back when the
learner releases a sequence, so that no more is ever on its way than a ring would hold. A slot is the learner's as soon as it has
arrived here; what a lost host had not handed over is collected again (`resumed_rows`).
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from agents.api import Params
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.slot_summary import SlotSummaries
from envpool_bridge.shm.slots import SlotViews, view_slot
from envpool_bridge.spec.encoding import concatenated
from envpool_bridge.spec.tree import Tree, take
from envpool_bridge.supervisor.processes import pickle_source
from jaxsrl.cluster.handle import RestartManager, usage_by_node
from jaxsrl.cluster.hosts.host_handle import HostHandle
from jaxsrl.cluster.inference.server_group import InferenceServerGroup, ServerHandle
from jaxsrl.cluster.protocol.engine import Call, ClusterLostError, Engine, HostGoneError, HostLostError, SlotLost
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.cluster.replay.client import RemoteReplayClient
from jaxsrl.collect.acting_agent import layout_of, params_shapes
from jaxsrl.collect.collector import SUPERVISION_METRICS, CollectorConfig
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.machine.lifecycle import RequeueError
from jaxsrl.metrics.cluster_traffic import HOSTS_LOST, PREFIX, NodeTraffic, traffic_totals

_WAIT_SECONDS = 0.2
_TURN_SECONDS = 0.1  # longest wait before hosts are looked after again
_SUMMED = ("inference/calls", "inference/rows", *SUPERVISION_METRICS.values())
_MEANS = ("env/wait_seconds", "inference/wait_seconds", "inference/busy_seconds")


class ClusterCollector:
    """A Collector whose slots come from environment hosts, one a replica of the plan. One thread, the learner's.

    Args:
        config: what every source is made from; its plan says which host is on which node.
        engine: the cluster, which outlives this.
        replicas: the hosts of the plan that this source is for, with the inference servers that act for them; None for all.
        replay: where slots go instead of here, on a node; this source then has their summaries. The caller closes it.
        on_loss: stops the run when the cluster or too many hosts are lost; None raises the error at once.

    Raises:
        UserError: If the environments cannot be sent to other nodes.
    """

    def __init__(
        self,
        config: CollectorConfig,
        engine: Engine,
        replicas: range | None = None,
        replay: RemoteReplayClient | None = None,
        on_loss: Callable[[RequeueError], None] | None = None,
    ) -> None:
        pickle_source(config.env_source)  # raises here, not on a node
        plan, agent = config.plan, config.agent
        if config.agent_state is None:
            state = jax.device_get(agent.initial_agent_state(plan.num_rows))
            config = dataclasses.replace(config, agent_state=state)
        self._engine, self._plan, self._on_loss = engine, plan, on_loss
        self._layout = agent_layout(config.spec, plan.shape, agent)
        self._versions = PublishedVersions(engine, layout_of(params_shapes(agent)), plan.max_policy_lag)
        self._reset: EpisodeReset | None = None
        self._next = self._first = config.first_sequence
        self._waited_seconds = 0.0
        mine = range(plan.environments.replicas) if replicas is None else replicas
        nodes = {index: plan.environments.nodes[index] for index in mine}
        self._traffic = {node: NodeTraffic() for node in dict.fromkeys(nodes.values())}
        self._replay, self._summaries = replay, SlotSummaries(self._layout)
        self._hosts = [HostHandle(config, self._layout, index, node, replay) for index, node in nodes.items()]
        self._restarts = RestartManager(engine, config.supervision)
        self._servers = InferenceServerGroup(engine, config, mine)
        try:
            self._servers.spawn()
            for host in self._hosts:
                host.spawn(engine, host.node)
        except BaseException:
            self.close()
            raise

    def publish(self, version: int, params: Params) -> None:
        """Puts parameters into the cluster once, and sends them to what acts: every host, or every server."""
        put = self._versions.publish(version, params)
        for acting in self._servers.handles or self._hosts:
            if acting.is_started:
                acting.publish(version, put)

    def start(self, reset: EpisodeReset) -> None:
        self._reset = reset
        self._servers.start(self._versions)
        for host in self._hosts:
            if host.remote is not None:
                host.start(reset, self._versions)

    def acquire(self, timeout_seconds: float) -> int | None:
        """Returns the next sequence that every host has sent, or None; raises what environments raised.

        Raises:
            EnvPoolError: If an environment host raised it.
            HostLostError: If a host was lost once too often, or none of the nodes took it in time.
            ClusterLostError: If the cluster is lost.
        """
        if not self._receive(self._next, timeout_seconds):
            return None
        self._next += 1
        return self._next - 1

    def slots(self, sequence: int) -> Sequence[SlotViews]:
        return [host.slots[sequence] for host in self._hosts]

    def release(self, sequence: int) -> None:
        for host in self._hosts:
            host.release(sequence)

    def drop(self, sequence: int) -> None:
        """Raises RuntimeError: plans whose channels drop are not for clusters (`place_hosts`)."""
        raise RuntimeError("every slot of a host is learned from")

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        """Returns a copy of the first slots' first observations, once every host has sent its first slot."""
        while not self._receive(self._first, _WAIT_SECONDS):
            if should_stop():
                return None
        return concatenated([take(host.complete_slot(self._first).observation, 0) for host in self._hosts])

    def totals(self) -> Mapping[str, float]:
        """Returns seconds waited and calls made, as hosts last reported them; seconds of hosts are means over hosts."""
        stats = [host.total_stats() for host in self._hosts]
        sums = {name: sum(one.get(name, 0.0) for one in stats) for name in (*_MEANS, *_SUMMED)}
        return {
            **{name: total / len(stats) if name in _MEANS else total for name, total in sums.items()},
            "learner/wait_seconds": self._waited_seconds,
            **traffic_totals(self._traffic),
            **usage_by_node(self._hosts, "hosts"),
            f"{PREFIX}parameters/bytes": float(self._versions.total_bytes),
            HOSTS_LOST: float(self._restarts.num_lost),
            **self._servers.totals(),
        }

    def waits(self) -> list[str]:
        return [
            f"environment host {host.index} on node {host.node} has not sent trajectory {self._next}"
            for host in self._hosts
            if self._next not in host.slots
        ]

    def close(self) -> None:
        """Ends the hosts, and the servers that they ask; idempotent."""
        for host in self._hosts:
            host.close()
        self._servers.close()

    def _receive(self, sequence: int, timeout_seconds: float) -> bool:
        """Takes in what comes until every host has sent this sequence; whether that was in time."""
        begin = time.monotonic()
        try:
            while True:
                self._restarts.poll(self._hosts, self._start_again)
                self._servers.poll(self._hosts, self._versions, self._reset is not None)
                if self._replay is not None:
                    self._replay.poll()
                if all(sequence in host.slots for host in self._hosts):
                    return True
                left = timeout_seconds - (time.monotonic() - begin)
                if left <= 0.0:
                    return False
                self._take_in(min(left, _TURN_SECONDS))
        except (ClusterLostError, HostLostError) as error:
            if self._on_loss is None:
                raise
            self._on_loss(error)
            return False
        finally:
            self._waited_seconds += time.monotonic() - begin

    def _take_in(self, timeout_seconds: float) -> None:
        hosts = {call: host for host in self._hosts for call in host.calls()}
        servers = self._servers.calls()
        replay = self._replay.calls() if self._replay is not None else []
        if not hosts and not servers and not replay:
            time.sleep(timeout_seconds)  # all are lost, and will be started again
            return
        for call in self._engine.wait([*hosts, *servers, *replay], timeout_seconds):
            host, server = hosts.get(call), servers.get(call)
            try:
                value = self._engine.get(call)
            except HostGoneError as error:
                self._lose(host, server, call, error)
                return
            if host is not None and isinstance(value, SlotLost):
                self._restarts.mark_lost(host, value.reason, value.node_is_doubted)
                return
            if host is not None:
                self._note(host, call, value)
            elif server is not None:
                self._servers.on_result(server, call, value)
            elif self._replay is not None:
                self._replay.on_result(call, value)

    def _lose(self, host: HostHandle | None, server: ServerHandle | None, call: Call, error: HostGoneError) -> None:
        """Marks the process whose call failed as lost. Replay, which also makes the calls for slots, ends the run instead."""
        if self._replay is not None and (host is None or call in host.pending) and server is None:
            raise self._replay.lost_error(error) from error
        if host is not None:
            self._restarts.mark_lost(host, str(error), error.node_is_doubted)
        elif server is not None:
            self._servers.mark_lost(server, str(error), error.node_is_doubted)

    def _start_again(self, host: HostHandle) -> None:
        if self._reset is not None:
            host.start(self._reset, self._versions)

    def _note(self, host: HostHandle, call: Call, value: Any) -> None:
        if host.on_result(call, value):
            return
        if call in host.pending:
            host.pending.remove(call)
            sequence, memory = value
            if self._replay is None:
                slot = view_slot(self._layout, memory.data)
            else:
                slot = self._summaries.view(memory)
                self._replay.note_slot(host.index, sequence, host.incarnation, memory.nbytes)
            host.receive(sequence, slot)
            self._count(host.node, slot)

    def _count(self, node: str, slot: SlotViews) -> None:
        traffic = self._traffic.setdefault(node, NodeTraffic())
        traffic.slots += 1
        traffic.env_steps += slot.reward.size
        traffic.bytes += self._layout.slot_bytes
        traffic.lag_sum += self._versions.newest - float(slot.policy_version.mean())
