"""Collectors, and replay, on the nodes of a cluster."""

import contextlib
import dataclasses
from collections.abc import Sequence

from agents.api import ReplayAgent
from envpool_bridge.supervisor.processes import pickle_source
from jaxsrl.cluster.hosts.collector import ClusterCollector
from jaxsrl.cluster.placement import OpenEngine
from jaxsrl.cluster.protocol.bundles import HOSTS, REPLAY, SERVERS
from jaxsrl.cluster.protocol.engine import Engine
from jaxsrl.cluster.replay.client import RemoteReplayClient, RemoteReplayMesh
from jaxsrl.cluster.replay.setup import PART_BYTES, sample_layout
from jaxsrl.collect.acting_agent import layout_of, params_shapes
from jaxsrl.collect.collector import Collector, CollectorConfig
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.learner.host_replay import HostReplay
from jaxsrl.machine.lifecycle import RequeueError
from jaxsrl.plan.fragment import FragmentKind
from jaxsrl.plan.passes.place_hosts import with_hosts_on
from jaxsrl.plan.passes.place_replay import SAMPLES_AHEAD
from jaxsrl.plan.placement import devices_of
from jaxsrl.plan.plan import Plan, plan_to_json
from jaxsrl.training.collectors import CollectorFactory
from jaxsrl.training.setup import TrainingSetup

_VERSIONS = 4  # of the parameters, that may be in a store at once
_PARTS = 4  # of replay that is saved or restored, likewise
_MARGIN = 1.5


class ClusterCollectors(CollectorFactory):
    """Makes collectors whose environments are on the nodes of a cluster. Owns its engine from the first collector on.

    Raises:
        UserError: If the environments cannot be sent to other nodes.
    """

    def __init__(self, setup: TrainingSetup, open_engine: OpenEngine) -> None:
        super().__init__(setup)
        pickle_source(setup.source)  # raises here, not on a node
        self._open_engine = open_engine
        self._opened = contextlib.ExitStack()
        self._lost: RequeueError | None = None
        self._replay: RemoteReplayClient | None = None

    def make_collector(self, config: CollectorConfig) -> Collector:
        config, engine = self.open(config)
        if config.plan.replay is not None and config.plan.replay.nodes:
            self._replay = RemoteReplayClient(config, engine, self._setup.keys.update)
            self._opened.callback(self._replay.close)
        return ClusterCollector(config, engine, replay=self._replay, on_loss=self._stop_run)

    def open(self, config: CollectorConfig) -> tuple[CollectorConfig, Engine]:
        """Opens the engine; returns the configuration with the plan on the nodes that are reserved, and the engine."""
        engine = self._opened.enter_context(self._open_engine(store_bytes(config)))
        plan = plan_where_reserved(config.plan, engine)
        self._setup.directory.write_plan(plan_to_json(plan))
        return dataclasses.replace(config, plan=plan), engine

    def open_replay(self, agent: ReplayAgent) -> HostReplay:
        if self._replay is None:
            return super().open_replay(agent)
        self._replay.wait_until_started()
        mesh = RemoteReplayMesh(devices_of(self._setup.plan.learner))
        return HostReplay(agent, mesh, self._setup.keys.update, self._replay, self.open_preparer(agent))

    def close(self, failure: BaseException | None) -> None:
        """Raises the error of a lost cluster, after the run has saved."""
        self._opened.close()
        if self._lost is not None and failure is None:
            raise self._lost

    def _stop_run(self, error: RequeueError) -> None:
        """Stops the run between two updates as a preemption does, so that it saves; `close` raises the error."""
        self._lost, lifecycle = error, self._setup.lifecycle
        self._setup.directory.log(f"stops: {error}")
        lifecycle.stop_signal = "SIGUSR1"
        lifecycle.stop()


def plan_where_reserved(plan: Plan, engine: Engine) -> Plan:
    """Returns the plan with each host, each inference server and replay on the node that is reserved for it."""

    def reserved(kind: str, nodes: Sequence[str]) -> list[str]:
        return [engine.reserved_node(kind, index) or node for index, node in enumerate(nodes)]

    placed = with_hosts_on(plan, reserved(HOSTS, plan.environments.nodes))
    if plan.replay is not None and plan.replay.nodes:
        placed = placed.with_nodes({FragmentKind.REPLAY}, reserved(REPLAY, plan.replay.nodes))
    if plan.calls_servers:
        placed = placed.with_nodes({FragmentKind.INFERENCE}, reserved(SERVERS, plan.inference.nodes))
    return placed


def store_bytes(config: CollectorConfig) -> int:
    """Returns the bytes that the object store of a node may have to hold at once.

    It holds all slots of all hosts and the newest twice, parameters, samples and parts of replay.
    """
    plan = config.plan
    slots = agent_layout(config.spec, plan.shape, config.agent).slot_bytes * (plan.shape.num_slots + 1)
    params = layout_of(params_shapes(config.agent)).block_bytes
    samples = 0
    if plan.replay is not None and plan.replay.nodes and isinstance(config.agent, ReplayAgent):
        sample = sample_layout(config.agent, config.spec)[1].block_bytes
        samples = sample * 2 * SAMPLES_AHEAD + _PARTS * PART_BYTES
    return int(_MARGIN * (slots * plan.environments.replicas + _VERSIONS * params + samples))
