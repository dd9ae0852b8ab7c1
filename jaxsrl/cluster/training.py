"""Training from environment hosts: as on one machine, but for where trajectories come from."""

import contextlib
import dataclasses

import jax

from jaxsrl.agent_layout import agent_layout
from jaxsrl.cluster.bundles import with_hosts_on
from jaxsrl.cluster.engine import Engine
from jaxsrl.cluster.host_setup import require_importable
from jaxsrl.cluster.parameters import layout_of
from jaxsrl.cluster.place import OpenEngine
from jaxsrl.cluster.source import ClusterSource
from jaxsrl.dataflow.plan import Plan, plan_to_json
from jaxsrl.dataflow.serving_nodes import with_servers_on
from jaxsrl.run_directory import PLAN, write_json
from jaxsrl.runtime.host_training import HostTraining
from jaxsrl.runtime.source import SourceConfig, TrajectorySource
from jaxsrl.runtime.training import TrainingSetup

_VERSIONS = 4  # of the parameters, that may be in a store at once
_MARGIN = 1.5


class ClusterTraining(HostTraining):
    """A run whose environments are on the nodes of a cluster. Owns its engine from the first trajectory on."""

    def __init__(self, setup: TrainingSetup, open_engine: OpenEngine) -> None:
        """Nothing starts yet.

        Raises:
            UserError: the environments are not to be had on other nodes.
        """
        super().__init__(setup)
        require_importable(setup.source)
        self._open_engine = open_engine
        self._opened = contextlib.ExitStack()

    def make_source(self, config: SourceConfig) -> TrajectorySource:
        """Environment hosts, one a replica of the plan."""
        engine = self._opened.enter_context(self._open_engine(store_bytes(config)))
        plan = plan_where_reserved(config.plan, engine)
        write_json(self.setup.directory.path / PLAN, plan_to_json(plan))
        return ClusterSource(dataclasses.replace(config, plan=plan), engine)

    def close(self) -> None:
        """Ends the hosts, then lets go of the cluster."""
        with self._opened:
            super().close()


def plan_where_reserved(plan: Plan, engine: Engine) -> Plan:
    """The plan with each host, and each inference server that they call, where the cluster has reserved room for it."""
    before = plan.environments.nodes
    placed = with_hosts_on(plan, [engine.reserved_node(host) or node for host, node in enumerate(before)])
    if not plan.calls_servers:
        return placed
    servers = enumerate(plan.inference.nodes)
    return with_servers_on(placed, [engine.server_node(server) or node for server, node in servers])


def store_bytes(config: SourceConfig) -> int:
    """What the learner's node may have to hold at once: every slot of every host, the newest one twice, and parameters."""
    plan = config.plan
    slots = agent_layout(config.spec, plan.shape, config.agent).slot_bytes * (plan.shape.num_slots + 1)
    params = layout_of(jax.eval_shape(config.agent.init, jax.random.key(0)).params).block_bytes
    return int(_MARGIN * (slots * plan.environments.replicas + _VERSIONS * params))
