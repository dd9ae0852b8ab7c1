"""Sizes that cannot be are refused with those that can; and memory is what the steps need."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from agents.api import Replay, ReplayConfig, Trajectory
from envpool_bridge.errors import UserError
from jaxsrl.replay.device.sampler import init_selection
from jaxsrl.replay.device.storage import init_storage
from jaxsrl.replay.sizes import make_sizes

CONFIG = ReplayConfig(capacity=1000, batch_size=8, min_size=100)


def shapes_of(steps, rows, observation=((3,), "float32"), frames=1, state=()):
    def array(length, dtype, shape=()):
        return jax.ShapeDtypeStruct((length, rows, *shape), jnp.dtype(dtype))

    return Trajectory(
        observation=array(steps + frames, observation[1], observation[0]),
        is_first=array(steps + frames, "bool"),
        action=array(steps, "int32"),
        reward=array(steps, "float32"),
        terminated=array(steps, "bool"),
        truncated=array(steps, "bool"),
        valid=array(steps, "bool"),
        policy_version=array(steps, "int32"),
        extras={},
        agent_state=state,
    )


def refused(message, steps=8, rows=4, frames=1, state=(), config=CONFIG, **replay):
    with pytest.raises(UserError, match=message):
        make_sizes(
            Replay(config, **{"sequence_length": 5, **replay}), shapes_of(steps, rows, frames=frames, state=state)
        )


def test_capacity_is_rounded_down_to_trajectories_and_strides():
    sizes = make_sizes(Replay(CONFIG, 5), shapes_of(8, 4))
    assert (sizes.ring_steps, sizes.num_groups, sizes.history) == (248, 4, 0)
    sizes = make_sizes(Replay(CONFIG, 5, stride=3, agents_per_window=2), shapes_of(8, 4, frames=4))
    assert (sizes.ring_steps, sizes.num_groups, sizes.history, sizes.max_age) == (240, 2, 3, 237)


def test_small_capacity_raises_error_with_least_valid_one():
    small = dataclasses.replace(CONFIG, capacity=100, min_size=20)
    message = "100 env steps are 24 steps .in whole units of 8. of 4 rows, but one .* need 33: set it to at least 160"
    refused(message, config=small, sequence_length=25)
    least = dataclasses.replace(small, capacity=160, min_size=100)
    assert make_sizes(Replay(least, 25), shapes_of(8, 4)).ring_steps == 40


def test_more_steps_than_int32_counts_are_refused():
    refused(
        "1073741824 env steps allow for: got 2000000000", config=dataclasses.replace(CONFIG, capacity=2_000_000_000)
    )


def test_min_size_out_of_range_raises_error():
    refused("min_size cannot be reached: it is 1000, but only 992", config=dataclasses.replace(CONFIG, min_size=1000))
    refused("after 20 env steps there are 8 steps of 4 rows, and a window has 30: set it to at least 120",
            config=dataclasses.replace(CONFIG, min_size=20), sequence_length=30)  # fmt: skip


def test_windows_that_cannot_be_cut_are_refused():
    refused("3 neighboring rows need a number of rows that is a multiple of it: got 4", agents_per_window=3)
    refused("got 0 steps, 1 rows and a stride of 1", sequence_length=0)
    refused("got 5 steps, 1 rows and a stride of 0", stride=0)


def test_a_memory_is_known_where_trajectories_begin_only():
    memory = (jax.ShapeDtypeStruct((4, 16), jnp.float32),)
    refused("every 8 steps: a stride of 12 steps", state=memory, stride=12)
    assert make_sizes(Replay(CONFIG, 5, stride=16), shapes_of(8, 4, state=memory)).stride == 16
    assert make_sizes(Replay(CONFIG, 5, window_start="episode"), shapes_of(8, 4, state=memory)).stride == 1
    rate = (jax.ShapeDtypeStruct((4,), jnp.float32),)
    assert make_sizes(Replay(CONFIG, 5), shapes_of(8, 4, state=rate)).stride == 1


def test_memory_is_within_five_percent_of_what_the_steps_need():
    config = ReplayConfig(capacity=32_000, min_size=100, priority_exponent=0.6)
    shapes = shapes_of(16, 32, ((84, 84), "uint8"), frames=4)
    sizes = make_sizes(Replay(config, 3), shapes)
    ring, selection = jax.eval_shape(lambda: (init_storage(sizes, shapes), init_selection(sizes)))
    ring_bytes, selection_bytes = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part)) for part in (ring, selection)
    )
    needed = 1000 // 16 * 16 * 32 * (84 * 84 + 4 + 4 + 4 + 3 + 1)
    assert needed < ring_bytes < ring_bytes + selection_bytes < 1.05 * needed
