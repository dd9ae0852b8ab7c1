"""Collectors and host replay of a run on this machine."""

import contextlib

from agents.api import ReplayAgent
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.collect.actor_pool import ActorCollector
from jaxsrl.collect.collector import Collector, CollectorConfig
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.collect.serial import SerialCollector
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.learner.host_replay import HostReplay, HostReplayMesh
from jaxsrl.learner.sample_preparer import SamplePreparer
from jaxsrl.plan.fragment import InProcess, Processes
from jaxsrl.plan.passes.prepare import prepare_lag
from jaxsrl.plan.placement import device_of_each_replica, devices_of
from jaxsrl.replay.client import LocalReplayClient, buffer_shapes
from jaxsrl.replay.fixed import MixedReplayClient
from jaxsrl.training.dataset_replay import fixed_replay, make_fixed_client, own_replay
from jaxsrl.training.run_state import holds_replay, restore_buffer
from jaxsrl.training.setup import TrainingSetup


class CollectorFactory:
    """Makes the collector and the host replay of a run on this machine; `jaxsrl.cluster` has those of other machines.

    Attributes:
        num_rows: environments that the collector steps.
        first_row: index in the run of the first of them.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup
        self.num_rows = setup.config.num_envs
        self.first_row = 0

    def make_collector(self, config: CollectorConfig) -> Collector:
        """Returns a collector, which the caller closes."""
        plan, lifecycle = config.plan, self._setup.lifecycle
        if isinstance(plan.environments.placement, InProcess):
            return SerialCollector(config, devices_of(plan.inference)[0])
        if isinstance(plan.inference.placement, Processes):
            return ActorCollector(config)
        return PoolCollector(config, device_of_each_replica(plan.inference), lifecycle)

    def make_replay(self, saved: Arrays | None) -> HostReplay | None:
        """Returns the replay that a plan keeps on the host, which the caller closes; None if it keeps none there.

        Args:
            saved: a checkpoint, whose replay data are restored if it has any; None at the start of a run.

        Raises:
            UserError: If there is no memory for it, or the checkpoint's replay data are of other sizes.
        """
        setup = self._setup
        agent, plan = setup.agent, setup.plan
        if not isinstance(agent, ReplayAgent):
            return None
        replay = self.open_replay(agent)
        if saved is not None and holds_replay(saved):
            shapes = trajectory_shapes(agent, setup.spec, plan.num_rows, plan.shape.rollout_length)
            own = own_replay(agent.data, setup.config.dataset)
            try:
                replay.experience.restore(restore_buffer(buffer_shapes(own, shapes), saved))
            except BaseException:
                replay.close()  # the caller has no replay that it could close
                raise
        return replay

    def open_replay(self, agent: ReplayAgent) -> HostReplay:
        """Returns an empty replay in memory of this machine."""
        setup, plan = self._setup, self._setup.plan
        shapes = trajectory_shapes(agent, setup.spec, plan.num_rows, plan.shape.rollout_length)
        dataset, limit = setup.config.dataset, setup.config.stall_timeout_seconds
        with contextlib.ExitStack() as opened:
            client = LocalReplayClient(own_replay(agent.data, dataset), shapes, limit)
            opened.callback(client.close)
            if dataset.path:
                fixed = make_fixed_client(dataset, fixed_replay(agent.data, dataset), agent, setup.spec, limit)
                opened.callback(fixed.close)
                client = MixedReplayClient(client, fixed)
            mesh = HostReplayMesh(devices_of(plan.learner))
            replay = HostReplay(agent, mesh, setup.keys.update, client, self.open_preparer(agent))
            opened.pop_all()  # the replay owns the client
        return replay

    def open_preparer(self, agent: ReplayAgent) -> SamplePreparer | None:
        """Returns what prepares samples next to the learner, for its replay to close; None if the learner prepares them."""
        setup, fragment = self._setup, self._setup.plan.prepare
        if fragment is None:
            return None
        devices, lag = devices_of(fragment), prepare_lag(setup.plan)
        return SamplePreparer(agent, devices, setup.keys.update, lag, setup.config.stall_timeout_seconds)

    def close(self, failure: BaseException | None) -> None:
        """Releases the machines that collectors were on, after these have been closed.

        Args:
            failure: the error that ended the run; None after an orderly end.
        """
