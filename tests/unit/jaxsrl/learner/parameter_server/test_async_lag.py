"""Policy lag that asynchronous replicas record: of the slot that was learned from, not of what fills it next."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import optax

from agents.api import GradientSteps, LearnerState
from agents.ops.gradient_steps import take_step
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.devices import run_devices
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.training.async_learners import AsynchronousLearners, ReplicaSetup

SPEC = EnvSpec("test", ArraySpec((2,), "float32"), DiscreteSpec(2))
FIRST, VERSION = 3, 1


class OneSlot:
    """A source of one slot, which the environments fill for a much later sequence as soon as it is released."""

    def __init__(self):
        self.slot = allocate_slots(make_layout(SPEC, PoolShape(1, 1, 1, 2, 4, 1), {}))[0]
        self.slot.policy_version[...] = VERSION
        self.sequences = [FIRST]

    def publish(self, version, params):
        pass

    def acquire_replica(self, index, timeout_seconds):
        return self.sequences.pop() if self.sequences else None

    def replica_slot(self, index, sequence):
        return self.slot

    def release_replica(self, index, sequence):
        self.slot.policy_version[...] = 1000


def test_lag_is_measured_before_the_slot_is_released():
    optimizer = optax.sgd(0.1)
    steps = GradientSteps(
        1,
        lambda params, extra, batch, key, num_updates: (batch.reward, {}),
        lambda params, prepared, step: (params, {"loss": jnp.float32(0)}),
        lambda progress, grads, metrics: take_step(optimizer, progress, grads),
        lambda state, progress, prepared_metrics, step_metrics: (
            LearnerState(progress.params, progress.opt_state, state.num_updates + 1, state.extra),
            {},
        ),
    )
    params = {"w": jnp.ones(2)}
    state = LearnerState(params, optimizer.init(params), jnp.int32(FIRST), jnp.int32(0))
    (device, *_), lifecycle = run_devices("cpu"), Lifecycle()
    setup = ReplicaSetup(steps, [LearnerMesh([device])], device, 0, jnp.zeros(2, jnp.uint32))
    learners = AsynchronousLearners(setup, OneSlot(), SimpleNamespace(state=state, previous_params=None), lifecycle)
    while not learners.step(lambda slots: None):
        lifecycle.raise_error()
    lifecycle.join()
    lifecycle.raise_error()
    assert (learners.stats.lag_sum, learners.stats.lag_max) == (FIRST - VERSION, FIRST - VERSION)
    assert np.all(learners._source.slot.policy_version == 1000)
