"""Steps between drawing and learning: the same on threads as in the device's program, and the first error ends them."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Sample
from envpool_bridge.errors import UserError, WaitTimeoutError
from jaxsrl.replay.pipeline import SamplePipeline, prepared
from jaxsrl.replay.rate_limiter import ReplayClosedError

SECONDS = 20.0


def sample_of(number):
    return Sample(jnp.full((2, 3), number, jnp.float32), jnp.full((3,), 0.5), jnp.int32(4))


def add_noise(params, sample, key):
    noise = jax.random.normal(key, sample.trajectory.shape)
    return dataclasses.replace(sample, trajectory=sample.trajectory + noise)


def scale(params, sample, key):
    return dataclasses.replace(sample, trajectory=sample.trajectory * params)


STEPS = (add_noise, scale, add_noise)


def test_threads_give_what_the_composition_gives_in_order_whatever_their_pace():
    compiled = jax.jit(lambda params, sample, key: prepared(STEPS, params, sample, key))
    keys = [jax.random.key(number) for number in range(9)]
    with SamplePipeline(STEPS, capacity=4) as pipeline:
        for number, key in enumerate(keys):
            pipeline.put(jnp.float32(number), sample_of(number), key, SECONDS)
        got = [pipeline.get(SECONDS) for _ in keys]
    for number, key in enumerate(keys):
        expected = compiled(jnp.float32(number), sample_of(number), key)
        # Programs of one step and of three may round differently.
        np.testing.assert_allclose(got[number].trajectory, expected.trajectory, rtol=1e-6, atol=1e-6)


def test_the_steps_of_a_composition_draw_apart_and_in_order():
    key = jax.random.key(5)
    first = jax.random.normal(jax.random.fold_in(key, 0), (2, 3))
    last = jax.random.normal(jax.random.fold_in(key, 2), (2, 3))
    got = prepared(STEPS, jnp.float32(2.0), sample_of(1), key)
    np.testing.assert_allclose(got.trajectory, (1 + first) * 2 + last, rtol=1e-6)
    assert prepared((), (), sample_of(1), key).num_windows == 4


def test_no_more_samples_than_the_queues_hold_are_inside():
    release = threading.Event()

    def wait(array):
        assert release.wait(SECONDS)
        return array

    def slow(params, sample, key):
        shape = jax.ShapeDtypeStruct((2, 3), jnp.float32)
        return dataclasses.replace(sample, trajectory=jax.pure_callback(wait, shape, sample.trajectory))

    with SamplePipeline((slow,), capacity=1) as pipeline:
        for number in range(2):  # one is being worked on, and one waits
            pipeline.put((), sample_of(number), jax.random.key(0), SECONDS)
        with pytest.raises(WaitTimeoutError):
            pipeline.put((), sample_of(2), jax.random.key(0), 0.05)
        release.set()
        assert [float(pipeline.get(SECONDS).trajectory[0, 0]) for _ in range(2)] == [0.0, 1.0]
        with pytest.raises(WaitTimeoutError):
            pipeline.get(0.01)


def test_the_first_error_of_a_step_ends_the_pipeline_and_reaches_the_learner():
    def broken(params, sample, key):
        raise ValueError("no such leaf: camera")

    with SamplePipeline((add_noise, broken, add_noise)) as pipeline:
        pipeline.put((), sample_of(0), jax.random.key(0), SECONDS)
        with pytest.raises(ReplayClosedError) as ended:
            pipeline.get(SECONDS)
        assert str(ended.value.__cause__) == "no such leaf: camera"
        with pytest.raises(ReplayClosedError):
            pipeline.put((), sample_of(0), jax.random.key(0), SECONDS)


def test_leaving_a_pipeline_leaves_no_thread():
    with SamplePipeline(STEPS) as pipeline:
        names = {thread.name for thread in threading.enumerate()}
        assert {"prepare-0", "prepare-1", "prepare-2"} <= names
    assert not any(thread.name.startswith("prepare-") for thread in threading.enumerate())
    with pytest.raises(ReplayClosedError):
        pipeline.get(SECONDS)


def test_a_pipeline_of_no_step_is_refused():
    with pytest.raises(UserError, match="at least 1 step"):
        SamplePipeline(())
