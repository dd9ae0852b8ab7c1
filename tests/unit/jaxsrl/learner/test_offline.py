"""Gradient steps on a dataset, several in one compiled call, against one call for each."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState, Replay, ReplayAgent, ReplayConfig
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.host_replay import HostReplayMesh
from jaxsrl.learner.offline import OfflineReplay
from jaxsrl.replay.fixed import FixedReplayClient, choose_num_joined
from tests.support.replay_model import Stream

STEPS, DUE = 60, 8


def update(state, sample, key):
    """Moves two numbers by what the windows hold, times noise of the key."""
    loss = jnp.mean(sample.trajectory.reward) + jnp.mean(sample.trajectory.observation)
    params = 0.9 * state.params + loss * jax.random.normal(key, (2,))
    return dataclasses.replace(state, params=params), {"loss/total": loss}, jnp.zeros(8)


AGENT = ReplayAgent(
    name="stub",
    init=lambda key: LearnerState(jax.random.normal(key, (2,)), (), jnp.int32(0), ()),
    initial_agent_state=lambda num_rows: (),
    act=lambda *arguments: None,  # pyright: ignore[reportArgumentType]
    update=update,
    extras={},
    data=Replay(ReplayConfig(batch_size=8), sequence_length=1),
)


def steps_of(bad_rewards=()):
    rng = np.random.default_rng(0)
    plain = jax.device_get(Stream(rows=1, steps=STEPS).slot())
    reward = rng.normal(size=(STEPS, 1)).astype(np.float32)
    reward[list(bad_rewards)] = np.nan
    return dataclasses.replace(
        plain,
        observation=rng.normal(size=(STEPS + 1, 1, 3)).astype(np.float32),
        action=rng.uniform(-1, 1, (STEPS, 1, 1)).astype(np.float32),
        reward=reward,
        extras={},
        agent_state=(),
    )


def learned(num_joined, steps, updates=3):
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), steps)
    client = FixedReplayClient(AGENT.data, shapes, steps, DUE, 60.0, num_joined)
    replay = OfflineReplay(AGENT, HostReplayMesh(jax.local_devices()[:1]), jax.random.key(1), client)
    state, metrics = jax.jit(AGENT.init)(jax.random.key(0)), []
    for _ in range(updates):
        state, means = replay(state, None)
        metrics.append(jax.device_get(means))
    totals = replay.totals()
    replay.close()
    assert totals["dataset/samples"] == DUE * updates
    return jax.device_get(state), metrics


@pytest.mark.parametrize("bad_rewards", [(), (7, 40)])
def test_joined_steps_are_those_of_one_call_each(bad_rewards):
    steps = steps_of(bad_rewards)
    expected, skipped = learned(1, steps)
    state, metrics = learned(4, steps)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), state, expected)
    shares = [float(each[SKIPPED]) for each in skipped]
    assert [float(each[SKIPPED]) for each in metrics] == shares
    assert (0.0 < np.mean(shares) < 1.0) if bad_rewards else not any(shares)


@pytest.mark.parametrize(
    ("num_samples", "batch", "shape", "expected"),
    [
        (1000, 256, (17,), 50),
        (200, 256, (17,), 50),
        (100, 256, (17,), 25),
        (1, 256, (17,), 1),
        (53, 256, (17,), 1),
        (1000, 256, (4, 84, 84), 4),
        (1000, 4096, (4, 84, 84), 1),
    ],
)
def test_joined_samples_divide_an_update_and_fit_into_memory(num_samples, batch, shape, expected):
    steps = dataclasses.replace(steps_of(), observation=np.zeros((STEPS + 1, 1, *shape), np.float32))
    if len(shape) > 1:
        steps = dataclasses.replace(steps, observation=steps.observation.astype(np.uint8))
    assert choose_num_joined(num_samples, Replay(ReplayConfig(batch_size=batch), 1), steps) == expected
