"""From a plan to what runs: which devices a fragment has, what collects trajectories, what makes an update."""

from agents.api import Agent, Array, ReplayAgent
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.collect.actor_pool import ActorCollector
from jaxsrl.collect.collector import Collector, CollectorConfig
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.collect.serial import SerialCollector
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.groups.mesh import GroupMeshes, stacked_groups
from jaxsrl.learner.host_replay import HostReplay, HostReplayMesh
from jaxsrl.learner.loop import HostLearner, Learner
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.synchronous import SynchronousUpdate
from jaxsrl.learner.recent_trajectories import RecentTrajectories, ReusingLearner
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.plan.fragment import Carries, InProcess, Processes, WhenFull
from jaxsrl.plan.passes.policy_groups import learns_by_group
from jaxsrl.plan.placement import device_of_each_replica, devices_of
from jaxsrl.replay.experience import LocalExperience, buffer_shapes
from jaxsrl.training.async_learners import AsynchronousLearners, ReplicaSetup
from jaxsrl.training.base import TrainingSetup
from jaxsrl.training.preflight import gradient_steps_of
from jaxsrl.training.run_state import Progress, holds_replay, restore_buffer


def make_source(config: CollectorConfig, lifecycle: Lifecycle) -> Collector:
    """What collects the trajectories of a plan whose environments run on the host."""
    plan = config.plan
    if isinstance(plan.environments.placement, InProcess):
        return SerialCollector(config, devices_of(plan.inference)[0])
    if isinstance(plan.inference.placement, Processes):
        return ActorCollector(config, lifecycle)
    return PoolCollector(config, device_of_each_replica(plan.inference), lifecycle)


def make_learner(
    setup: TrainingSetup,
    source: Collector,
    progress: Progress,
    update_key: Array,
    lifecycle: Lifecycle,
    replay: HostReplay | None = None,
    watch: FiniteWatch | None = None,
) -> HostLearner:
    """What learns from the source: one program over a mesh, one for each policy, gradients and a parameter server, or host replay.

    Args:
        setup: checked.
        source: of trajectories.
        progress: to continue from.
        update_key: the number of updates is folded into it for each update.
        lifecycle: of threads.
        replay: where the plan keeps experience on the host.
        watch: of updates that were left out because they were not finite.

    Raises:
        UserError: the plan has a parameter server, but the agent's update cannot be cut into gradient steps.
    """
    agent, spec, plan = setup.agent, setup.spec, setup.plan
    server, gradients = plan.parameter_server, plan.channel(Carries.GRADIENTS)
    trajectories = plan.channel(Carries.TRAJECTORIES)
    drops = trajectories is not None and trajectories.when_full is WhenFull.DROP_OLDEST
    if replay is not None:
        return Learner(replay.mesh, source, progress.state, replay, progress.behind, drops, watch)
    if not isinstance(agent, Agent):
        raise TypeError(f"agent {agent.name} has no replay around it")
    if learns_by_group(plan):
        meshes = GroupMeshes(
            stacked_groups(agent, spec), {learner.group: devices_of(learner) for learner in plan.learners}
        )
        return Learner(
            meshes, source, progress.state, meshes.jit_update(agent, update_key), progress.behind, drops, watch
        )
    devices = devices_of(plan.learner)
    if server is None or gradients is None:
        mesh = LearnerMesh(devices)
        update = mesh.jit_update(agent, update_key)
        if trajectories is not None and trajectories.kept:
            recent = RecentTrajectories(source, trajectories.kept, trajectories.reuses, plan.max_policy_lag)
            return ReusingLearner(mesh, source, progress.state, update, recent, progress.behind, watch)
        return Learner(mesh, source, progress.state, update, progress.behind, drops, watch)
    steps = gradient_steps_of(agent, plan)
    device = devices_of(server)[0]
    if gradients.synchronous:
        mesh = LearnerMesh(devices)
        update = SynchronousUpdate(steps, mesh, device, update_key)
        return Learner(mesh, source, progress.state, update, progress.behind, drops, watch)
    if not isinstance(source, PoolCollector):
        raise UserError(f"plan {plan.policy}: asynchronous replicas need environment processes of their own")
    meshes = [LearnerMesh([device]) for device in device_of_each_replica(plan.learner)]
    limit = setup.config.stall_timeout_seconds
    replicas = ReplicaSetup(steps, meshes, device, gradients.max_lag, update_key, limit)
    return AsynchronousLearners(replicas, source, progress, lifecycle, watch)


def make_host_replay(setup: TrainingSetup, update_key: Array, saved: Arrays | None) -> HostReplay | None:
    """The experience that a plan keeps on the host, as it was saved; None where it keeps none there.

    Args:
        setup: checked.
        update_key: the number of updates is folded into it.
        saved: a checkpoint; None to begin, or where it holds no experience.

    Raises:
        UserError: there is no memory for it, or what was saved is of other sizes.
    """
    agent, spec, plan = setup.agent, setup.spec, setup.plan
    if not isinstance(agent, ReplayAgent):
        return None
    shapes = trajectory_shapes(agent, spec, plan.num_rows, plan.shape.rollout_length)
    experience = LocalExperience(agent.data, shapes, setup.config.stall_timeout_seconds)
    replay = HostReplay(agent, HostReplayMesh(devices_of(plan.learner)), update_key, experience)
    if saved is not None and holds_replay(saved):
        replay.restore(restore_buffer(buffer_shapes(agent.data, shapes), saved))
    return replay
