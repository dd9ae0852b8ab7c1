"""`Agent.advantage` of agents for trajectories and of their wrappers, against generalized advantages in numpy loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.a2c import A2CConfig, make_a2c
from agents.api import Trajectory
from agents.impala import IMPALAConfig, make_impala
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.ops.popart import PopArt
from agents.ops.running_moments import RunningMoments
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.imitation import GAILConfig, with_imitation
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
NETWORK = NetworkConfig(hidden_sizes=(4,))
STEPS, ROWS, DISCOUNT = 7, 4, 0.9
MEAN, VARIANCE = np.float32([1.0, -2.0, 0.5]), np.float32([4.0, 1.0, 0.25])
VALUE_MEAN, VALUE_DEVIATION = 3.0, 2.0


def trajectory() -> Trajectory:
    """Rows that start with the trajectory; some episodes terminate and some are truncated, and a step that only resets follows."""
    rng = np.random.default_rng(0)
    ended, valid = np.zeros((STEPS, ROWS), bool), np.ones((STEPS, ROWS), bool)
    for t in range(STEPS):
        valid[t] = ~ended[t - 1] if t else True
        ended[t] = valid[t] & (rng.uniform(size=ROWS) < 0.3)
    terminated = ended & (np.arange(ROWS) % 2 == 0)
    return Trajectory(
        observation=rng.normal(size=(STEPS + 1, ROWS, 3)).astype(np.float32),
        is_first=np.concatenate([np.ones((1, ROWS), bool), ~valid]),
        action=np.zeros((STEPS, ROWS), np.int32),
        reward=np.where(valid, rng.normal(1.0, 3.0, (STEPS, ROWS)), 0.0).astype(np.float32),
        terminated=terminated,
        truncated=ended & ~terminated,
        valid=valid,
        policy_version=np.ones((STEPS, ROWS), np.int32),
        extras={},
    )


def looped_advantages(batch, reward, value, lambda_):
    """Sums of discounted TD errors, step by step, until the episode ends."""
    ended, result = batch.terminated | batch.truncated, np.zeros((STEPS, ROWS))
    for row in range(ROWS):
        for start in range(STEPS):
            factor = 1.0
            for t in range(start, STEPS):
                if not batch.valid[t, row]:
                    break
                following = 0.0 if batch.terminated[t, row] else value[t + 1, row]
                result[start, row] += factor * (reward[t, row] + DISCOUNT * following - value[t, row])
                factor *= DISCOUNT * lambda_
                if ended[t, row]:
                    break
    return result


def return_deviation(batch, reward):
    """Standard deviation of the running discounted return over the valid steps."""
    seen = []
    for row in range(ROWS):
        total = 0.0
        for t in range(STEPS):
            total = reward[t, row] + (0.0 if batch.is_first[t, row] else DISCOUNT * total)
            if batch.valid[t, row]:
                seen.append(total)
    return np.std(seen)


CASES = {
    "ppo": (make_ppo, PPOConfig, {"gae_lambda": 0.7}, 0.7),
    "a2c": (make_a2c, A2CConfig, {"gae_lambda": 0.4}, 0.4),
    "impala": (make_impala, IMPALAConfig, {}, 0.95),
    "clipped": (make_ppo, PPOConfig, {"reward_clip": 0.5}, 0.95),
    "normalized": (make_ppo, PPOConfig, {"normalization": NormalizationConfig(True, True, clip_reward=0.8)}, 0.95),
    "popart": (make_ppo, PPOConfig, {"value_normalization": "popart"}, 0.95),
    "all": (
        make_ppo,
        PPOConfig,
        {
            "reward_clip": 2.0,
            "normalization": NormalizationConfig(True, True, clip_reward=0.8),
            "value_normalization": "popart",
        },
        0.95,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_advantage_equals_the_generalized_one_by_hand(case):
    make, config, options, lambda_ = CASES[case]
    agent, batch = make(config(discount=DISCOUNT, **options), SPEC, NETWORK), trajectory()
    state = jax.jit(agent.init)(jax.random.key(1))
    params, extra, network_params = state.params, state.extra, state.params
    observation, reward, scale, shift = batch.observation, batch.reward, 1.0, 0.0
    if "reward_clip" in options:
        reward = np.clip(reward, -options["reward_clip"], options["reward_clip"])
    if "normalization" in options:
        pair = lambda x: jnp.stack([x, jnp.zeros_like(x)])  # noqa: E731  a number is the sum of two
        (name,) = set(params["statistics"]) - {"return"}
        moments = RunningMoments(pair(jnp.float32(9.0)), pair(jnp.asarray(MEAN)), pair(jnp.asarray(VARIANCE)))
        params = {**params, "statistics": {**params["statistics"], name: moments}}
        network_params = params["agent"]
        observation = np.clip((observation - MEAN) / np.sqrt(VARIANCE + 1e-8), -10.0, 10.0)
        reward = np.clip(reward / return_deviation(batch, reward), -0.8, 0.8)
        assert (np.abs(reward) == np.float32(0.8)).any()
    if "value_normalization" in options:
        scale, shift = VALUE_DEVIATION, VALUE_MEAN
        extra = {**extra, "popart": PopArt(jnp.float32(shift), jnp.float32(scale**2), jnp.float32(1.0))}
    value = shift + scale * np.asarray(make_actor_critic(NETWORK, SPEC).value(network_params, observation))
    expected = looped_advantages(batch, reward, value, lambda_)
    actual, counted = agent.advantage(params, extra, batch)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(counted, batch.valid)


def test_an_agent_with_rewards_of_its_own_offers_no_advantage():
    agent = make_ppo(PPOConfig(), SPEC, NETWORK)
    assert agent.advantage is not None
    assert with_imitation(agent, GAILConfig(), SPEC, None).advantage is None
