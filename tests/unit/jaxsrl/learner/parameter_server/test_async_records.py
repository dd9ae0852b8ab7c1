"""What asynchronous replicas record: the lag of the slot that was learned from, not of what fills it next, and skipped updates.

How far they learn: not past the last update, and not far past the one that the run has seen.
"""

import threading
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import optax

from agents.api import GradientSteps, LearnerState
from agents.ops.gradient_steps import take_step
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.devices import run_devices
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.training.async_learners import MOST_AHEAD, AsynchronousLearners, ReplicaSetup

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


class SlotsOfTwo:
    """A source of slots for two replicas. Those of the first have a NaN; the second begins when the first has learned from one."""

    def __init__(self, num_each):
        layout = make_layout(SPEC, PoolShape(1, 1, 1, 2, 4, 1), {})
        self.slots = [allocate_slots(layout)[0] for _ in range(2)]
        self.num_each, self.num_taken, self.first_released = num_each, [0, 0], threading.Event()
        self.slots[0].reward[...] = np.nan

    def publish(self, version, params):
        pass

    def acquire_replica(self, index, timeout_seconds):
        if self.num_taken[index] == self.num_each or (index == 1 and not self.first_released.wait(timeout_seconds)):
            return None
        self.num_taken[index] += 1
        return FIRST + self.num_taken[index] - 1

    def replica_slot(self, index, sequence):
        return self.slots[index]

    def release_replica(self, index, sequence):
        if index == 0:
            self.first_released.set()


def learners_on(source, num_replicas, watch=None, last=1000):
    """Learners of one gradient step, which adds up rewards, and their lifecycle."""
    optimizer = optax.sgd(0.1)
    steps = GradientSteps(
        1,
        lambda params, extra, batch, key, num_updates: (batch.reward, {}),
        lambda params, prepared, step: ({"w": params["w"] + jnp.sum(prepared)}, {}),
        lambda progress, grads, metrics: take_step(optimizer, progress, grads),
        lambda state, progress, prepared_metrics, step_metrics: (
            LearnerState(progress.params, progress.opt_state, state.num_updates + 1, state.extra),
            {},
        ),
    )
    params = {"w": jnp.ones(2)}
    state = LearnerState(params, optimizer.init(params), jnp.int32(FIRST), jnp.int32(0))
    (device, *_), lifecycle = run_devices("cpu"), Lifecycle()
    meshes = [LearnerMesh([device]) for _ in range(num_replicas)]
    setup = ReplicaSetup(steps, meshes, device, 1, jnp.zeros(2, jnp.uint32), last)
    progress = SimpleNamespace(state=state, previous_params=None)
    return AsynchronousLearners(setup, source, progress, lifecycle, watch), lifecycle


def step_once(learners, lifecycle):
    while not learners.step(lambda slots: None):
        lifecycle.raise_error()


def test_lag_is_measured_before_the_slot_is_released():
    learners, lifecycle = learners_on(OneSlot(), 1)
    step_once(learners, lifecycle)
    lifecycle.join()
    lifecycle.raise_error()
    assert (learners.stats.lag_sum, learners.stats.lag_max) == (FIRST - VERSION, FIRST - VERSION)
    assert np.all(learners._source.slot.policy_version == 1000)


def test_a_skipped_trajectory_of_any_replica_is_counted():
    learners, lifecycle = learners_on(SlotsOfTwo(1), 2, FiniteWatch(0))
    step_once(learners, lifecycle)
    assert (float(learners.metrics[SKIPPED]), learners.stats.skipped) == (1.0, 1)
    lifecycle.join()
    lifecycle.raise_error()


def test_metrics_of_a_replica_that_is_ahead_hide_no_skip():
    class Overtaken(threading.Condition):
        """A lock whose release lets another replica note a finite trajectory at once."""

        def __exit__(self, *error):
            super().__exit__(*error)
            learners.metrics = {**learners.metrics, SKIPPED: jnp.float32(0.0)}

    learners, lifecycle = learners_on(SlotsOfTwo(1), 2, FiniteWatch(0))
    learners._lock = Overtaken()
    step_once(learners, lifecycle)
    assert learners.stats.skipped == 1
    lifecycle.join()
    lifecycle.raise_error()


def test_skips_in_a_row_count_where_replicas_are_ahead():
    learners, lifecycle = learners_on(SlotsOfTwo(3), 2, FiniteWatch(3))
    learners.step(lambda slots: None)  # starts the replicas
    assert learners._server.wait_update(FIRST + 2, 60.0) == FIRST + 3
    too_many = []
    while learners.num_updates < FIRST + 3:
        step_once(learners, lifecycle)
        too_many.append(learners.too_many_nonfinite)
    assert (learners.stats.skipped, too_many[-1]) == (3, True)
    lifecycle.join()
    lifecycle.raise_error()


def test_replicas_return_after_the_last_update():
    source = SlotsOfTwo(1000)
    learners, lifecycle = learners_on(source, 2, last=FIRST + 2)
    while learners.num_updates < FIRST + 2:
        step_once(learners, lifecycle)
    for thread in lifecycle._threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in lifecycle._threads)
    assert (source.num_taken, learners._seen, learners.waits()) == ([2, 2], {}, [])
    lifecycle.join()
    lifecycle.raise_error()


def test_state_stays_until_the_next_update_is_seen():
    learners, lifecycle = learners_on(SlotsOfTwo(1000), 2)
    step_once(learners, lifecycle)
    state, params = learners.state, np.asarray(learners.state.params["w"])
    newest = FIRST + 1 + MOST_AHEAD
    assert learners._server.wait_update(newest - 1, 60.0) == newest
    assert learners._server.wait_update(newest, 0.5) == newest  # no further ahead
    assert len(learners._seen) == MOST_AHEAD
    np.testing.assert_array_equal(learners.state.params["w"], params)
    assert np.any(learners._server.state().params["w"] != params)
    step_once(learners, lifecycle)
    assert (int(state.num_updates), int(learners.state.num_updates)) == (FIRST + 1, FIRST + 2)
    lifecycle.join()
    lifecycle.raise_error()
