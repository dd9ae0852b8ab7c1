"""The asynchronous parameter server: nothing is lost silently, nothing too stale is applied, replicas converge together."""

import random
import threading
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.api import GradientSteps, LearnerState
from agents.ops.gradient_steps import take_step
from agents.ops.schedules import ScheduleConfig, make_schedule, scale_by_schedule
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.async_replica import AsynchronousReplica
from jaxsrl.learner.parameter_server.async_server import ParameterServer
from jaxsrl.learner.parameter_server.packed_tree import pack
from jaxsrl.learner.parameter_server.synchronous import SynchronousUpdate
from jaxsrl.machine.lifecycle import Lifecycle

DEVICES = jax.local_devices()
DIMENSION = 3


def quadratic(num_steps=4, learning_rate=0.1, momentum=None, limit=None, optimizer=None):
    """Half the squared distance of `params` to a batch's [N, D] points; step n sees the points n, n + num_steps, ..."""
    optimizer = optimizer or optax.sgd(learning_rate, momentum)

    def prepare(params, extra, batch, key, num_updates):
        return batch, {"drawn": jax.random.uniform(key)}

    def gradient(params, prepared, step):
        points = prepared.reshape(-1, num_steps, DIMENSION)[:, step]
        return {"w": params["w"] - jnp.mean(points, 0)}, {"distance": jnp.sum(jnp.square(params["w"] - points))}

    def finish(state, progress, prepared_metrics, step_metrics):
        metrics = prepared_metrics | {name: jnp.mean(values) for name, values in step_metrics.items()}
        metrics["skipped"] = progress.num_skipped
        extra = state.extra + 1
        return LearnerState(progress.params, progress.opt_state, state.num_updates + 1, extra), metrics

    def apply(progress, grads, metrics):
        return take_step(optimizer, progress, grads, None if limit is None else metrics["distance"] > limit)

    steps = GradientSteps(num_steps, prepare, gradient, apply, finish)
    params = {"w": jnp.zeros(DIMENSION)}
    return steps, LearnerState(params, optimizer.init(params), jnp.int32(0), jnp.int32(0))


def make_server(max_staleness, num_replicas=2, problem=None, **options) -> ParameterServer:
    steps, state = problem or quadratic()
    return ParameterServer(steps, state, DEVICES[0], num_replicas, max_staleness, **options)


def push_ones(server, replica, version, distance=0.0) -> bool:
    """A gradient of minus one for each parameter."""
    return server.push(replica, version, pack({"w": -jnp.ones(DIMENSION)}), pack({"distance": jnp.float32(distance)}))


def complete(server, replica):
    return server.complete(replica, {"drawn": jnp.float32(0)}, [pack({"distance": jnp.float32(0)})] * 4)


@pytest.mark.parametrize(("max_staleness", "taken"), [(0, False), (2, False), (3, True), (8, True)])
def test_a_gradient_older_than_the_bound_is_dropped_and_counted(max_staleness, taken):
    server = make_server(max_staleness)
    old = server.pull().version
    for _ in range(3):
        assert push_ones(server, 0, server.pull().version)
    assert push_ones(server, 1, old) is taken
    counters = server.counters
    assert (counters.applied, counters.dropped) == (3 + taken, 1 - taken)
    assert (counters.staleness_sum, counters.staleness_max) == ((3, 3) if taken else (0, 0))
    np.testing.assert_allclose(server.state().params["w"], 0.1 * (3 + taken), rtol=1e-6)
    assert counters.values()["server/dropped_gradients"] == 1 - taken


def test_a_gradient_from_the_future_is_rejected():
    server = make_server(0)
    with pytest.raises(ValueError, match="version 1 came to a server at version 0"):
        push_ones(server, 0, 1)


def test_pushes_of_two_threads_are_applied_or_counted_as_dropped():
    server, pushes, accepted = make_server(max_staleness=1), 60, [0, 0]
    lifecycle = Lifecycle()

    def push_from(replica):
        rng = random.Random(replica)
        for _ in range(pushes):
            version = server.pull().version
            time.sleep(rng.random() * 1e-3)
            accepted[replica] += push_ones(server, replica, version)

    # Two versions behind whatever the scheduler does: at least these are dropped.
    for _ in range(2):
        push_ones(server, 0, server.pull().version)
    assert not push_ones(server, 1, 0)
    for replica in range(2):
        lifecycle.start_thread(f"replica {replica}", lambda replica=replica: push_from(replica))
    for thread in lifecycle._threads:
        thread.join(60)
    lifecycle.raise_error()
    counters = server.counters
    assert counters.applied == sum(accepted) + 2
    assert counters.applied + counters.dropped == 2 * pushes + 3
    assert counters.staleness_max <= 1
    assert counters.staleness_sum <= counters.applied
    assert server.pull().version == counters.applied
    np.testing.assert_allclose(server.state().params["w"], 0.1 * counters.applied, rtol=1e-4)


def test_an_update_is_one_trajectory_of_every_replica():
    published = []
    server = make_server(8, on_update=lambda number, params: published.append((number, float(params["w"][0]))))
    push_ones(server, 0, 0)
    complete(server, 0)
    complete(server, 0)
    assert server.wait_update(0, 0.01) == 0
    assert published == []
    complete(server, 1)
    assert server.wait_update(0, 60.0) == 1
    complete(server, 1)
    assert [number for number, _ in published] == [1, 2]
    assert published[0][1] == pytest.approx(0.1)
    state = server.state()
    assert (int(state.num_updates), int(state.extra)) == (2, 4)
    assert [server.trajectories_completed(replica) for replica in range(2)] == [2, 2]


def test_the_rate_counts_the_trajectories_of_the_pushing_replica():
    rate = make_schedule(ScheduleConfig("linear"), 0.8, total_updates=4)
    server = make_server(8, problem=quadratic(optimizer=scale_by_schedule(rate), limit=10.0))
    sizes = []

    def push(replica, distance=0.0):
        before = server.state().params["w"][0]
        push_ones(server, replica, server.pull().version, distance)
        sizes.append(float(server.state().params["w"][0] - before))

    push(0)
    push(0, distance=11.0)  # skipped
    complete(server, 0)
    push(0)
    push(1)
    complete(server, 0)
    push(0)
    np.testing.assert_allclose(sizes, [0.8, 0.0, 0.6, 0.8, 0.4], rtol=1e-5)


def test_an_update_wakes_the_thread_that_waits_for_it():
    server, woken = make_server(8, num_replicas=1), []
    thread = threading.Thread(target=lambda: woken.append(server.wait_update(0, 60.0)))
    thread.start()
    complete(server, 0)
    thread.join(30)
    assert woken == [1]


def test_a_stop_ends_the_steps_of_its_own_trajectory_only():
    server = make_server(8, problem=quadratic(limit=1.0))
    taken = []
    for replica, distance in ((0, 2.0), (0, 0.0), (1, 0.0)):
        push_ones(server, replica, server.pull().version, distance)
        taken.append(float(server.state().params["w"][0]))
    assert taken == pytest.approx([0.0, 0.0, 0.1])
    assert int(complete(server, 0)["skipped"]) == 2
    push_ones(server, 0, server.pull().version)
    assert float(server.state().params["w"][0]) == pytest.approx(0.2)


def test_a_nonfinite_gradient_counts_in_its_own_trajectory():
    server = make_server(8)
    server.push(0, 0, pack({"w": jnp.full(DIMENSION, jnp.nan)}), pack({"distance": jnp.float32(0)}))
    push_ones(server, 0, 0)
    assert [float(complete(server, replica)[SKIPPED]) for replica in (1, 0, 0)] == [0.0, 1.0, 0.0]
    state = server.state()
    np.testing.assert_allclose(state.params["w"], 0.1, rtol=1e-6)
    assert int(state.extra) == 2  # what the skipped trajectory would have added is left out


def test_a_state_that_was_asked_for_survives_later_pushes():
    server = make_server(8, problem=quadratic(momentum=0.9))
    push_ones(server, 0, 0)
    state, pulled = server.state(), server.pull()
    for _ in range(3):
        push_ones(server, 0, server.pull().version)
    np.testing.assert_allclose(jax.tree.leaves(state.opt_state)[0], -1.0)
    np.testing.assert_allclose(state.params["w"], 0.1, rtol=1e-6)
    np.testing.assert_allclose(pulled.params.arrays["float32"], 0.1, rtol=1e-6)


def test_a_server_that_is_never_released_is_an_error():
    server = make_server(0, timeout_seconds=0.01)
    with server._locked(), pytest.raises(TimeoutError, match="held by another replica"):
        threads_see(server.pull)


def threads_see(call):
    """Runs `call` in a thread of its own and raises what it raised."""
    lifecycle = Lifecycle()
    lifecycle.start_thread("other", call)
    lifecycle._threads[0].join(30)
    lifecycle.raise_error()


def points(seed, num_points=8):
    return np.random.default_rng(seed).normal(size=(num_points, DIMENSION)).astype(np.float32) + np.float32(2.0)


def test_one_replica_without_staleness_is_the_synchronous_update():
    steps, state = quadratic(momentum=0.9)
    mesh, key = LearnerMesh(DEVICES[:1]), jax.random.key(3)
    server = ParameterServer(steps, state, DEVICES[0], 1, max_staleness=0)
    replica = AsynchronousReplica(steps, mesh, server, 0, key)
    update, expected = SynchronousUpdate(steps, mesh, DEVICES[0], key), state
    for seed in range(3):
        batch = jax.device_put(points(seed), DEVICES[0])
        metrics = replica.update(batch, lambda: False)
        expected, expected_metrics = update(expected, batch)
        chex.assert_trees_all_equal(metrics, expected_metrics)
    chex.assert_trees_all_equal(server.state(), expected)
    assert (server.counters.applied, server.counters.dropped, server.counters.staleness_max) == (12, 0, 0)


def test_each_trajectory_of_each_replica_has_its_own_key():
    steps, state = quadratic()
    server = ParameterServer(steps, state, DEVICES[0], 2, max_staleness=8)
    mesh = LearnerMesh(DEVICES[:1])
    replicas = [AsynchronousReplica(steps, mesh, server, number, jax.random.key(3)) for number in range(2)]
    batch = jax.device_put(points(0), DEVICES[0])
    drawn = [float(replica.update(batch, lambda: False)["drawn"]) for replica in replicas for _ in range(3)]
    assert len(set(drawn)) == 6


def test_a_stopped_replica_completes_nothing():
    steps, state = quadratic()
    server = ParameterServer(steps, state, DEVICES[0], 1, max_staleness=0)
    replica = AsynchronousReplica(steps, LearnerMesh(DEVICES[:1]), server, 0, jax.random.key(0))
    answers = iter([False, False, True])
    assert replica.update(jax.device_put(points(0), DEVICES[0]), lambda: next(answers)) is None
    assert server.counters.applied == 2
    assert server.trajectories_completed(0) == 0


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_two_replicas_converge_to_the_mean_of_all_points(max_staleness):
    steps, state = quadratic(learning_rate=0.05)
    server = ParameterServer(steps, state, DEVICES[2], 2, max_staleness)
    replicas = [
        AsynchronousReplica(steps, LearnerMesh([DEVICES[number]]), server, number, jax.random.key(0))
        for number in range(2)
    ]
    data = [points(seed=number) for number in range(2)]
    lifecycle = Lifecycle()

    def learn(number):
        batch = jax.device_put(data[number], DEVICES[number])
        while server.wait_update(after=0, timeout_seconds=0.0) < 30 and not lifecycle.should_stop():
            if server.trajectories_completed(number) < 30:
                replicas[number].update(batch, lifecycle.should_stop)

    for number in range(2):
        lifecycle.start_thread(f"replica {number}", lambda number=number: learn(number))
    for thread in lifecycle._threads:
        thread.join(60)
    lifecycle.raise_error()
    got = np.asarray(server.state().params["w"])
    # Means of the two replicas' points differ; steps on two points at a time and drops pull the result a little.
    assert np.linalg.norm(got - np.mean(data, axis=(0, 1))) < 0.5
    assert np.linalg.norm(np.mean(data, axis=(0, 1))) > 3.0  # where it began
    counters = server.counters
    assert counters.applied + counters.dropped == 2 * 30 * 4
    assert counters.staleness_max <= max_staleness
