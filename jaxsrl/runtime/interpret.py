"""From a plan to what runs: which devices a fragment has, what collects trajectories, what makes an update."""

import jax

from agents.api import Agent, Array
from envpool_bridge.errors import UserError
from jaxsrl.dataflow.fragment import Devices, Fragment, InProcess, Processes
from jaxsrl.dataflow.plan import Plan
from jaxsrl.learner.mesh import Device, KeyedUpdate, LearnerMesh
from jaxsrl.runtime.lifecycle import Lifecycle
from jaxsrl.runtime.pool_source import PoolSource
from jaxsrl.runtime.serial_source import SerialSource
from jaxsrl.runtime.source import SourceConfig, TrajectorySource


def devices_of(fragment: Fragment) -> list[Device]:
    """The fragment's devices, in order; the first one of the default platform where it has no device of its own."""
    placement = fragment.placement
    if not isinstance(placement, Devices):
        return jax.local_devices()[:1]
    devices = jax.local_devices(backend=placement.platform or None)
    return [devices[index] for index in placement.indices]


def device_of_each_replica(fragment: Fragment) -> list[Device]:
    """The first device of every replica."""
    placement = fragment.placement
    if not isinstance(placement, Devices):
        return devices_of(fragment) * fragment.replicas
    devices = jax.local_devices(backend=placement.platform or None)
    firsts = [placement.of_replica(replica, fragment.replicas)[0] for replica in range(fragment.replicas)]
    return [devices[index] for index in firsts]


def runs_on_device(plan: Plan) -> bool:
    """Whether the environments themselves are on devices."""
    return isinstance(plan.environments.placement, Devices)


def make_source(config: SourceConfig, lifecycle: Lifecycle) -> TrajectorySource:
    """What collects the trajectories of a plan whose environments run on the host."""
    plan = config.plan
    if isinstance(plan.environments.placement, InProcess):
        return SerialSource(config, devices_of(plan.inference)[0])
    if isinstance(plan.inference.placement, Processes):
        from jaxsrl.runtime.actor_source import ActorSource

        return ActorSource(config, lifecycle)
    return PoolSource(config, device_of_each_replica(plan.inference), lifecycle)


def make_update(agent: Agent, plan: Plan, mesh: LearnerMesh, update_key: Array) -> KeyedUpdate:
    """What makes an update: one program over the mesh, or gradients there and a parameter server that applies them.

    Raises:
        UserError: the plan has a parameter server, but the agent's update cannot be cut into gradient steps.
    """
    server = plan.parameter_server
    if server is None:
        return mesh.jit_update(agent, update_key)
    if agent.gradient_steps is None:
        raise UserError(
            f"plan {plan.policy}: fragment {server.name}: agent {agent.name} does not say how its update is cut into "
            f"gradient steps: use another --policy (multiple_learners shares gradients without a server)"
        )
    from jaxsrl.learner.parameter_server import SynchronousUpdate

    return SynchronousUpdate(agent.gradient_steps, mesh, devices_of(server)[0], update_key)
