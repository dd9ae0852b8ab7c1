"""Builds the learner of a plan whose environments are on the host."""

from typing import Any, NamedTuple

from agents.api import Agent
from envpool_bridge.errors import UserError
from jaxsrl.collect.collector import Collector
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.learner.early_compilation import EarlyUpdate
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.groups.mesh import GroupMeshes
from jaxsrl.learner.host_replay import HostReplay
from jaxsrl.learner.loop import HostLearner, Learner
from jaxsrl.learner.mesh import KeyedUpdate, LearnerMesh
from jaxsrl.learner.parameter_server.synchronous import SynchronousUpdate
from jaxsrl.learner.recent_trajectories import RecentTrajectories, ReusingLearner
from jaxsrl.plan.fragment import Carries, WhenFull
from jaxsrl.plan.passes.policy_groups import learns_by_group
from jaxsrl.plan.placement import device_of_each_replica, devices_of
from jaxsrl.training.async_learners import AsynchronousLearners, ReplicaSetup
from jaxsrl.training.preflight import gradient_steps_of
from jaxsrl.training.run_state import Progress
from jaxsrl.training.setup import TrainingSetup


class MeshUpdate(NamedTuple):
    """A mesh of learning devices, and an agent's update on it."""

    mesh: LearnerMesh
    update: KeyedUpdate

    def join(self) -> None:
        """Waits for the end of a compilation that `start_compilation` has started."""
        if isinstance(self.update, EarlyUpdate):
            self.update.join()


def start_compilation(setup: TrainingSetup, first: int) -> MeshUpdate | None:
    """Returns the mesh of a plan and the update on it, whose compilation it starts; None if the plan has another learner.

    Args:
        setup: Setup of the run.
        first: updates done before; if none are left, nothing is compiled.
    """
    agent, plan, config, keys = setup.agent, setup.plan, setup.config, setup.keys
    has_server = plan.parameter_server is not None and plan.channel(Carries.GRADIENTS) is not None
    if not isinstance(agent, Agent) or learns_by_group(plan) or has_server:
        return None
    mesh = LearnerMesh(devices_of(plan.learner))
    if mesh.spans_processes or first >= config.num_updates:  # several processes compile together, in the first update
        return MeshUpdate(mesh, mesh.jit_update(agent, keys.update))

    def make() -> KeyedUpdate:
        update: Any = mesh.jit_update(agent, keys.update)
        slot = trajectory_shapes(agent, setup.spec, config.num_envs, config.rollout_length)
        update.lower(mesh.state_shapes(agent, keys.init), mesh.batch_shapes(slot)).compile()
        return update

    return MeshUpdate(mesh, EarlyUpdate(make))


def make_learner(
    setup: TrainingSetup,
    source: Collector,
    progress: Progress,
    program: MeshUpdate | None,
    replay: HostReplay | None = None,
    watch: FiniteWatch | None = None,
) -> HostLearner:
    """Returns the learner of the plan, for one mesh, for a mesh of each policy, for a parameter server, or for host replay.

    Args:
        setup: Setup of the run.
        source: Source of trajectories.
        progress: Progress to continue from.
        program: mesh and update of `start_compilation`.
        replay: Replay of a plan with replay on the host.
        watch: Watch of updates that are skipped because they are not finite.

    Raises:
        UserError: If the plan has a parameter server, but the agent's update cannot be cut into gradient steps.
    """
    agent, plan, update_key = setup.agent, setup.plan, setup.keys.update
    server, gradients = plan.parameter_server, plan.channel(Carries.GRADIENTS)
    trajectories = plan.channel(Carries.TRAJECTORIES)
    drops = trajectories is not None and trajectories.when_full is WhenFull.DROP_OLDEST

    def learner(mesh: LearnerMesh, update: KeyedUpdate) -> Learner:
        return Learner(mesh, source, progress.state, update, progress.previous_params, drops, watch)

    if replay is not None:
        return learner(replay.mesh, replay)
    if not isinstance(agent, Agent):
        raise TypeError(f"agent {agent.name} has no replay around it")
    if learns_by_group(plan):
        meshes = GroupMeshes(agent.groups, {learner.group: devices_of(learner) for learner in plan.learners})
        return learner(meshes, meshes.jit_update(agent, update_key))
    if program is not None:
        mesh, update = program
        if trajectories is not None and trajectories.kept:
            recent = RecentTrajectories(source, trajectories.kept, trajectories.reuses, plan.max_policy_lag)
            return ReusingLearner(mesh, source, progress.state, update, recent, progress.previous_params, watch)
        return learner(mesh, update)
    if server is None or gradients is None:
        raise TypeError(f"plan {plan.name} has neither an update on a mesh nor a parameter server")
    steps = gradient_steps_of(agent, plan)
    device = devices_of(server)[0]
    if gradients.synchronous:
        mesh = LearnerMesh(devices_of(plan.learner))
        return learner(mesh, SynchronousUpdate(steps, mesh, device, update_key))
    if not isinstance(source, PoolCollector):
        raise UserError(f"plan {plan.name}: asynchronous replicas need environment processes of their own")
    meshes = [LearnerMesh([device]) for device in device_of_each_replica(plan.learner)]
    limit = setup.config.stall_timeout_seconds
    replicas = ReplicaSetup(steps, meshes, device, gradients.max_lag, update_key, setup.config.num_updates, limit)
    return AsynchronousLearners(replicas, source, progress, setup.lifecycle, watch)
