"""Collecting on the device against a plain loop over the rows that the serial plan steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, step_rows
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import view_slots
from jaxsrl.collect.inference.act import make_act, row_keys, wrap_step
from jaxsrl.device_loop.collect import _act_keys, collect, init_rows
from jaxsrl.device_loop.loop import DeviceLearner
from jaxsrl.device_loop.program import make_run_keys
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.cpu_rows import JaxRows
from jaxsrl.learner.mesh import LearnerMesh
from tests.support.skipping_agent import make_skipping

ROWS, STEPS, SEED = 4, 24, 3
ENV = CartPole(max_steps=15)  # episodes end both ways within a trajectory
AGENT = make_ppo(PPOConfig(), ENV.spec(), NetworkConfig(hidden_sizes=(8,)))
ACT_KEY = jax.random.key(9)
FIELDS = ("observation", "is_first", "action", "reward", "terminated", "truncated", "valid", "policy_version")


def slots_by_loop(params, num_slots):
    """Slots as the serial plan fills them: one act and one step of host rows at a time; version n acts in slot n."""
    layout = make_layout(ENV.spec(), PoolShape(1, 1, 1, ROWS, STEPS, num_slots), AGENT.extras)
    slots = view_slots(layout, memoryview(bytearray(layout.total_bytes)))
    rows, act = JaxRows(ENV, range(ROWS), SEED), make_act(AGENT)
    keys = row_keys(ACT_KEY, range(ROWS))
    first = slots[0]
    rows.reset(EpisodeReset((0,) * ROWS, (None,) * ROWS), FirstRows(first.observation[0], first.is_first[0]))
    for n, slot in enumerate(slots):
        if n:
            slot.observation[0], slot.is_first[0] = slots[n - 1].observation[-1], slots[n - 1].is_first[-1]
        step_rows(slot, slice(0, STEPS)).prepare()
        for t in range(STEPS):
            now = np.full(ROWS, n * STEPS + t, np.uint32)
            action, extras, _ = act(params, slot.observation[t], (), slot.is_first[t], keys, now)
            slot.action[t], slot.policy_version[t] = action, n
            slot.extras["behavior_log_prob"][t] = extras["behavior_log_prob"]
            rows.step(slot.action[t], step_rows(slot, t))
    return slots


@pytest.fixture(scope="module")
def collected():
    params = AGENT.init(jax.random.key(1)).params
    keys = make_run_keys(SEED, ACT_KEY, jax.random.key(2), ROWS).rows
    jitted = jax.jit(lambda rows, version: collect(ENV, AGENT, params, rows, keys, version, STEPS))
    rows, trajectories = init_rows(ENV, AGENT, keys), []
    for n in range(2):
        trajectory, rows = jitted(rows, jnp.int32(n))
        trajectories.append(trajectory)
    return trajectories, slots_by_loop(params, 2), rows


@pytest.mark.slow
def test_two_trajectories_hold_what_the_serial_plan_writes(collected):
    trajectories, slots, _ = collected
    for trajectory, slot in zip(trajectories, slots, strict=True):
        for name in FIELDS:
            got, expected = np.asarray(getattr(trajectory, name)), getattr(slot, name)
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype), name
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=name)
        got = np.asarray(trajectory.extras["behavior_log_prob"])
        np.testing.assert_allclose(got, slot.extras["behavior_log_prob"], rtol=1e-5)
    flags = [np.concatenate([getattr(slot, name) for slot in slots]) for name in ("terminated", "truncated")]
    assert flags[0].any()
    assert flags[1].any()


def test_a_step_that_only_resets_is_not_valid_and_earns_nothing(collected):
    trajectories, _, _ = collected
    done = np.concatenate([np.asarray(one.terminated | one.truncated) for one in trajectories])
    valid = np.concatenate([np.asarray(one.valid) for one in trajectories])
    reward = np.concatenate([np.asarray(one.reward) for one in trajectories])
    np.testing.assert_array_equal(valid[1:], ~done[:-1])
    assert (reward[~valid] == 0).all()
    assert (reward[valid] == 1).all()


def test_device_episode_sums_match_the_trajectories(collected):
    trajectories, _, rows = collected
    done = np.concatenate([np.asarray(one.terminated | one.truncated) for one in trajectories])
    valid = np.concatenate([np.asarray(one.valid) for one in trajectories])
    for row in range(ROWS):
        ends = np.flatnonzero(done[:, row])
        begins = [0, *(ends[:-1] + 1)]
        # CartPole earns 1 a step, so returns are lengths.
        lengths = [int(valid[begin : end + 1, row].sum()) for begin, end in zip(begins, ends, strict=True)]
        unfinished = int(valid[ends[-1] + 1 :, row].sum())
        sums = jax.tree.map(lambda leaf, row=row: float(leaf[row]), rows.episodes)
        assert (sums.count, sums.return_sum, sums.length_sum) == (len(ends), sum(lengths), sum(lengths))
        assert sums.return_max == max(lengths)
        assert (sums.running_return, sums.running_length) == (unfinished, unfinished)


def test_restarted_rows_are_in_unused_episodes():
    agent, mesh = make_skipping(), LearnerMesh(jax.local_devices()[:1])
    keys = make_run_keys(SEED, ACT_KEY, jax.random.key(2), ROWS)
    for updates in (0, 6):
        state = dataclasses.replace(agent.init(None), num_updates=jnp.int32(updates))
        learner = DeviceLearner(agent, ENV, mesh, 4, state, keys)
        reset = JaxRows(ENV, range(ROWS), SEED)
        first = FirstRows(np.zeros((ROWS, 4), np.float32), np.zeros(ROWS, bool))
        reset.reset(EpisodeReset((4 * updates,) * ROWS, (None,) * ROWS), first)
        np.testing.assert_array_equal(learner._rows.envs.episode, [4 * updates] * ROWS)
        np.testing.assert_allclose(learner._rows.envs.observation, first.observation, rtol=1e-6)


def test_keys_of_steps_beyond_32_bits_are_those_of_the_host():
    version = 2**32 // STEPS  # its last steps are beyond 2^32
    keys = row_keys(ACT_KEY, range(ROWS))
    on_device = jax.jit(_act_keys, static_argnums=2)(keys, jnp.int32(version), STEPS)
    for t in (0, STEPS - 1):
        steps = np.full(ROWS, wrap_step(version * STEPS + t), np.uint32)
        on_host = jax.vmap(jax.random.fold_in)(keys, steps)
        np.testing.assert_array_equal(jax.random.key_data(on_device[t]), jax.random.key_data(on_host))
