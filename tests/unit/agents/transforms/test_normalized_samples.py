"""Observation normalization of agents with replay: statistics by numpy, and the same agent on observations normalized by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig, Sample, Trajectory
from agents.ddpg import DDPGConfig, make_ddpg
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.offline.discrete_bcq import DiscreteBCQConfig, make_discrete_bcq
from agents.offline.discrete_cql import DiscreteCQLConfig, make_discrete_cql
from agents.sac import SACConfig, make_sac
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

N, KEY = 64, jax.random.key(3)
SPEC = EnvSpec(
    "test",
    {"counts": ArraySpec((2,), "int16"), "image": ArraySpec((2, 2, 1), "uint8"), "speed": ArraySpec((3,), "float32")},
    ArraySpec((2,), "float32", -1, 1),
)
DISCRETE = dataclasses.replace(SPEC, action=DiscreteSpec(3))
NETWORK = NetworkConfig(hidden_sizes=(4,), torso="mlp")
REPLAY = ReplayConfig(batch_size=N)
AGENTS = {
    "sac": (make_sac, SACConfig(REPLAY), SPEC),
    "ddpg": (make_ddpg, DDPGConfig(REPLAY), SPEC),
    "dqn": (make_dqn, DQNConfig(REPLAY, total_updates=10), DISCRETE),
    "discrete_cql": (make_discrete_cql, DiscreteCQLConfig(REPLAY, total_updates=10), DISCRETE),
    "discrete_bcq": (make_discrete_bcq, DiscreteBCQConfig(REPLAY, total_updates=10), DISCRETE),
}


def sample_of(seed, spec=SPEC):
    random = np.random.default_rng(seed)
    observation = {
        "counts": random.integers(0, 9, (2, N, 2)).astype(np.int16),
        "image": random.integers(0, 255, (2, N, 2, 2, 1)).astype(np.uint8),
        "speed": (random.normal(size=(2, N, 3)) * [1.0, 20.0, 0.01] + [5.0, -3.0, 0.1]).astype(np.float32),
    }
    steps = Trajectory(
        observation=observation,
        is_first=np.zeros((2, N), bool),
        action=(
            random.uniform(-1, 1, (1, N, 2)).astype(np.float32)
            if spec is SPEC
            else random.integers(0, 3, (1, N), np.int32)
        ),
        reward=random.normal(size=(1, N)).astype(np.float32),
        terminated=np.zeros((1, N), bool),
        truncated=np.zeros((1, N), bool),
        valid=random.random((1, N)) < 0.8,
        policy_version=np.zeros((1, N), np.int32),
        extras={},
    )
    return Sample(steps, np.full(N, 1 / N, np.float32), np.int32(N))


def agent_of(is_on, name="sac"):
    make, config, spec = AGENTS[name]
    return make(dataclasses.replace(config, normalize_observations=is_on), spec, NETWORK)


def normalized(sample, samples):
    """The sample with the statistics of `samples`, by numpy."""
    observation = dict(sample.trajectory.observation)
    for name in ("counts", "speed"):
        used = np.concatenate([each.trajectory.observation[name][0][each.trajectory.valid[0]] for each in samples])
        unit = (observation[name] - used.mean(0, np.float64)) / np.sqrt(used.var(0, np.float64) + 1e-8)
        observation[name] = np.clip(unit, -10, 10).astype(np.float32)
    return dataclasses.replace(sample, trajectory=dataclasses.replace(sample.trajectory, observation=observation))


def assert_close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_updates_and_actions_are_of_normalized_observations(name):
    agent, plain = agent_of(True, name), agent_of(False, name)
    state, expected = agent.init(KEY), plain.init(KEY)
    samples = [sample_of(seed, AGENTS[name][2]) for seed in range(3)]
    update, plain_update = jax.jit(agent.update), jax.jit(plain.update)
    for number, sample in enumerate(samples):
        state, _, _ = update(state, sample, KEY)
        expected, _, _ = plain_update(expected, normalized(sample, samples[: number + 1]), KEY)
    assert_close(state.params["agent"], expected.params)
    assert_close(state.extra, expected.extra)
    seen = samples[0].trajectory.observation
    by_hand = normalized(samples[0], samples).trajectory.observation
    rest = (), jnp.zeros(N, bool), jax.random.split(KEY, N), Mode.GREEDY
    at_first = jax.tree.map(lambda leaf: leaf[0], (seen, by_hand))
    assert_close(agent.act(state.params, at_first[0], *rest)[0], plain.act(expected.params, at_first[1], *rest)[0])


def test_images_are_not_normalized():
    images = dataclasses.replace(SPEC, observation=SPEC.observation["image"])
    agent = make_sac(SACConfig(normalize_observations=True), images, NETWORK)
    assert "statistics" not in jax.eval_shape(agent.init, KEY).params
