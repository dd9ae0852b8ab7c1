"""Training from environment hosts: as on one machine, but for where trajectories come from."""

import contextlib
import dataclasses

import jax

from agents.api import ReplayAgent
from envpool_bridge.supervisor.processes import pickle_source
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.cluster.hosts.source import ClusterSource
from jaxsrl.cluster.placement import OpenEngine
from jaxsrl.cluster.protocol.engine import Engine
from jaxsrl.cluster.protocol.published_params import layout_of
from jaxsrl.cluster.replay.client import RemoteExperience, RemoteReplayMesh
from jaxsrl.cluster.replay.setup import PART_BYTES, sample_layout
from jaxsrl.collect.collector import Collector, CollectorConfig
from jaxsrl.collect.slot_layout import agent_layout, trajectory_shapes
from jaxsrl.learner.host_replay import HostReplay
from jaxsrl.plan.passes.place_hosts import with_hosts_on
from jaxsrl.plan.passes.place_inference import with_servers_on
from jaxsrl.plan.passes.place_replay import SAMPLES_AHEAD, with_replay_on
from jaxsrl.plan.placement import devices_of
from jaxsrl.plan.plan import Plan, plan_to_json
from jaxsrl.replay.experience import buffer_shapes
from jaxsrl.run_directory import PLAN, write_json
from jaxsrl.training.base import TrainingSetup
from jaxsrl.training.host_training import HostTraining
from jaxsrl.training.run_state import holds_replay, restore_buffer

_VERSIONS = 4  # of the parameters, that may be in a store at once
_PARTS = 4  # of experience that is saved or restored, likewise
_MARGIN = 1.5


class ClusterTraining(HostTraining):
    """A run whose environments are on the nodes of a cluster. Owns its engine from the first trajectory on."""

    def __init__(self, setup: TrainingSetup, open_engine: OpenEngine) -> None:
        """Nothing starts yet.

        Raises:
            UserError: the environments cannot be sent to other nodes.
        """
        super().__init__(setup)
        pickle_source(setup.source)  # raises here, not on a node
        self._open_engine = open_engine
        self._opened = contextlib.ExitStack()
        self._experience: RemoteExperience | None = None

    def make_source(self, config: CollectorConfig) -> Collector:
        """Environment hosts, one a replica of the plan."""
        engine = self._opened.enter_context(self._open_engine(store_bytes(config)))
        plan = plan_where_reserved(config.plan, engine)
        write_json(self.setup.directory.path / PLAN, plan_to_json(plan))
        config = dataclasses.replace(config, plan=plan)
        if plan.replay is not None and plan.replay.nodes:
            self._experience = RemoteExperience(config, engine, self.update_key)
            self._opened.callback(self._experience.close)
        return ClusterSource(config, engine, replay=self._experience)

    def make_replay(self, saved: Arrays | None) -> HostReplay | None:
        """As on one machine, or what draws from the node that keeps experience."""
        experience, agent = self._experience, self.setup.agent
        if experience is None or not isinstance(agent, ReplayAgent):
            return super().make_replay(saved)
        experience.wait_until_started()
        mesh = RemoteReplayMesh(devices_of(self.setup.plan.learner))
        replay = HostReplay(agent, mesh, self.update_key, experience)
        if saved is not None and holds_replay(saved):
            sizes = (self.setup.plan.num_rows, self.config.rollout_length)
            shapes = trajectory_shapes(agent, self.setup.spec, *sizes)
            replay.restore(restore_buffer(buffer_shapes(agent.data, shapes), saved))
        return replay

    def close(self) -> None:
        """Ends the hosts, then lets go of the cluster."""
        with self._opened:
            super().close()


def plan_where_reserved(plan: Plan, engine: Engine) -> Plan:
    """The plan with each host, each inference server that they call, and replay, where the cluster has reserved room for it."""
    before = plan.environments.nodes
    placed = with_hosts_on(plan, [engine.reserved_node(host) or node for host, node in enumerate(before)])
    if plan.replay is not None and plan.replay.nodes:
        placed = with_replay_on(placed, engine.replay_node() or plan.replay.nodes[0])
    if not plan.calls_servers:
        return placed
    servers = enumerate(plan.inference.nodes)
    return with_servers_on(placed, [engine.server_node(server) or node for server, node in servers])


def store_bytes(config: CollectorConfig) -> int:
    """What a node may have to hold at once: all slots of all hosts, the newest twice, parameters, samples and parts of replay."""
    plan = config.plan
    slots = agent_layout(config.spec, plan.shape, config.agent).slot_bytes * (plan.shape.num_slots + 1)
    params = layout_of(jax.eval_shape(config.agent.init, jax.random.key(0)).params).block_bytes
    drawn = 0
    if plan.replay is not None and plan.replay.nodes and isinstance(config.agent, ReplayAgent):
        sample = sample_layout(config.agent, config.spec)[1].block_bytes
        drawn = sample * 2 * SAMPLES_AHEAD + _PARTS * PART_BYTES
    return int(_MARGIN * (slots * plan.environments.replicas + _VERSIONS * params + drawn))
