"""Scores of levels where some steps are random and only initialize the statistics of observations."""

import dataclasses

import jax
import numpy as np

from agents.a2c import A2CConfig, make_a2c
from agents.networks.config import NetworkConfig
from agents.transforms.level_replay import with_level_replay
from agents.transforms.level_replay_config import LevelReplayConfig
from agents.transforms.normalization import NormalizationConfig
from tests.unit.agents.transforms.test_advantage import ROWS, SPEC, STEPS, trajectory

LEVELS = 5


def test_random_steps_at_the_start_of_a_run_have_no_score():
    config = A2CConfig(normalization=NormalizationConfig(observations=True))
    spec = dataclasses.replace(SPEC, levels=LEVELS)
    agent = with_level_replay(make_a2c(config, spec, NetworkConfig(hidden_sizes=(4,))), spec, LevelReplayConfig(), ROWS)
    level = np.broadcast_to(np.arange(ROWS, dtype=np.int32), (STEPS, ROWS))
    extras = {"level": level, "next_level": level, "behavior_log_prob": np.zeros((STEPS, ROWS), np.float32)}
    batch = dataclasses.replace(trajectory(), extras=extras, agent_state=agent.initial_agent_state(ROWS))
    learned, update = batch.terminated | batch.truncated, jax.jit(agent.update)
    assert learned.any()
    states = [jax.jit(agent.init)(jax.random.key(0))]
    for version in (0, 1):
        acted = np.full((STEPS, ROWS), version, np.int32)
        row = batch.agent_state | {"step": np.full(ROWS, STEPS * version, np.int32)}
        now = dataclasses.replace(batch, policy_version=acted, agent_state=row)
        states.append(update(states[-1], now, jax.random.key(1))[0])
    random, counted = (state.extra["scores"] for state in states[1:])
    assert int(random.episodes) == 0
    assert not random.newest.any()
    assert int(counted.episodes) == learned.sum()
    np.testing.assert_array_equal(counted.newest[:ROWS] > 0, learned.any(axis=0))
    assert (counted.score[:ROWS][learned.any(axis=0)] > 0.0).all()
