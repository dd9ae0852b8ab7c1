"""GAIL and AIRL: the discriminator's equations, rewards in place of the environment's, and what is rejected."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.a2c import A2CConfig, make_a2c
from agents.api import ReplayConfig, Trajectory
from agents.dqn import DQNConfig, make_dqn
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.transforms.imitation import (
    GAILConfig,
    Steps,
    _normalizer,
    discriminator_loss,
    make_discriminator,
    reward_of,
    with_imitation,
)
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec

T, B, KEY = 6, 4, jax.random.key(5)
SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
CONTINUOUS = dataclasses.replace(SPEC, action=ArraySpec((2,), "float32", -2.0, 2.0))
NETWORK = NetworkConfig(hidden_sizes=(5,))
CONFIG = GAILConfig(steps_per_update=1, batch_size=16, hidden_sizes=(4,), entropy_coef=0.01)


def expert_of(spec=SPEC, count=50):
    random = np.random.default_rng(0)
    observation = (random.normal(size=(count, 3)) * [1, 10, 0.1] + [0, 5, 1]).astype(np.float32)
    action = random.integers(0, 2, count) if spec is SPEC else random.uniform(-2, 2, (count, 2)).astype(np.float32)
    following = np.roll(observation, -1, axis=0)
    return Steps(observation, action, following, np.arange(count) % 10 == 9)


def batch_of(agent):
    random = np.random.default_rng(1)
    ended = random.random((T, B)) < 0.2
    valid = np.concatenate([np.ones((1, B), bool), ~ended[:-1]])
    return Trajectory(
        observation=random.normal(size=(T + 1, B, 3)).astype(np.float32),
        is_first=np.concatenate([np.zeros((1, B), bool), ~valid]),
        action=random.integers(0, 2, (T, B)),
        reward=random.normal(size=(T, B)).astype(np.float32),
        terminated=ended & valid,
        truncated=np.zeros((T, B), bool),
        valid=valid,
        policy_version=np.zeros((T, B), np.int32),
        extras={name: np.zeros((T, B, *extra.shape), extra.dtype) for name, extra in agent.extras.items()},
        agent_state=(),
    )


def agents(config=CONFIG):
    plain = make_a2c(A2CConfig(), SPEC, NETWORK)
    return plain, with_imitation(plain, config, SPEC, expert_of())


@pytest.mark.parametrize("spec", [SPEC, CONTINUOUS], ids=["discrete", "continuous"])
def test_the_loss_is_that_of_its_equation(spec):
    expert = expert_of(spec)
    discriminator = make_discriminator(CONFIG, spec, expert)
    params = discriminator.init(KEY)
    policy_observation, policy_action = expert.observation[::-1] * 1.5, expert.action[::-1]
    weight = (np.arange(50) % 3 > 0).astype(np.float32)
    loss, _ = discriminator_loss(discriminator, params, expert, Steps(policy_observation, policy_action), weight)

    def probability(observation, action):
        mean, deviation = expert.observation.mean(0), expert.observation.std(0)
        seen = np.clip((observation - mean) / deviation, -10, 10)
        # Without an expert there is no normalization: observations are normalized by hand.
        logit = make_discriminator(CONFIG, spec, None).logits(params, Steps(seen.astype(np.float32), action))
        return 1.0 / (1.0 + np.exp(-np.asarray(logit, float)))

    of_expert, of_policy = probability(*expert[:2]), probability(policy_observation, policy_action)

    def entropy(p):
        return -p * np.log(p) - (1 - p) * np.log(1 - p)

    def weighted(x):
        return (x * weight).sum() / weight.sum()

    expected = -np.log(of_expert).mean() - weighted(np.log(1 - of_policy))
    expected -= 0.01 * 0.5 * (entropy(of_expert).mean() + weighted(entropy(of_policy)))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_the_agent_learns_from_rewards_of_the_discriminator():
    plain, agent = agents()
    batch, state = batch_of(plain), agent.init(KEY)
    new, metrics = jax.jit(agent.update)(state, batch, jax.random.key(2))
    discriminator = make_discriminator(CONFIG, SPEC, expert_of())
    observation, action = batch.observation[:-1].reshape(-1, 3), batch.action.reshape(-1)
    logits = discriminator.logits(new.extra.discriminator, Steps(observation, action))
    reward = np.where(batch.valid, np.log1p(np.exp(logits)).reshape(T, B), 0.0)
    imitated = dataclasses.replace(batch, reward=reward.astype(np.float32))
    inner = dataclasses.replace(state, extra=state.extra.agent)
    expected, _ = jax.jit(plain.update)(inner, imitated, jax.random.split(jax.random.key(2))[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), new.params, expected.params)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), new.extra.discriminator, state.extra.discriminator)
    assert max(jax.tree.leaves(moved)) == pytest.approx(CONFIG.learning_rate, rel=0.01)  # Adam's first step
    assert float(metrics["imitation/reward"]) == pytest.approx(reward[batch.valid].mean(), rel=1e-4)
    other = dataclasses.replace(batch, reward=batch.reward + 7.0)
    same = jax.jit(agent.update)(state, other, jax.random.key(2))[0]
    jax.tree.map(np.testing.assert_array_equal, new, same)


def test_rewards_of_both_forms():
    logits = jnp.array([-2.0, 0.0, 3.0])
    d = 1 / (1 + np.exp(-np.asarray(logits)))
    np.testing.assert_allclose(reward_of(GAILConfig(), logits), -np.log(1 - d), rtol=1e-5)
    np.testing.assert_allclose(reward_of(GAILConfig(reward="signed"), logits), np.log(d) - np.log(1 - d), rtol=1e-5)


def test_airl_logits_and_rewards_are_those_of_its_equations():
    config = dataclasses.replace(CONFIG, algorithm="airl", discount=0.9)
    plain = make_a2c(A2CConfig(normalization=NormalizationConfig(observations=True, random_start=False)), SPEC, NETWORK)
    agent, expert = with_imitation(plain, config, SPEC, expert_of()), expert_of()
    learn, batch, state = jax.jit(plain.update), batch_of(plain), agent.init(KEY)
    inner = dataclasses.replace(state, extra=state.extra.agent)
    state = dataclasses.replace(state, params=learn(inner, batch, KEY)[0].params)
    new, metrics = jax.jit(agent.update)(state, batch, jax.random.key(2))
    weights = jax.device_get(new.extra.discriminator)
    mean, deviation = expert.observation.mean(0), expert.observation.std(0)

    def values(observation):
        """g and h by hand."""
        seen = np.clip((observation - mean) / deviation, -10, 10).astype(np.float32)
        logits = jax.jit(make_discriminator(config, SPEC, None).logits)
        zero = {"terminated": np.ones(len(seen), bool), "log_prob": np.zeros(len(seen))}
        only_g = jax.tree.map(lambda leaf: leaf * np.array([1.0, 0.0]).reshape(2, *[1] * (leaf.ndim - 1)), weights)
        only_h = jax.tree.map(lambda leaf: leaf * np.array([0.0, 1.0]).reshape(2, *[1] * (leaf.ndim - 1)), weights)
        steps = Steps(seen, (), seen, **zero)
        return np.asarray(logits(only_g, steps)), -np.asarray(logits(only_h, steps))

    before, after = (batch.observation[part].reshape(-1, 3) for part in (slice(None, -1), slice(1, None)))
    (g, h), (_, next_h) = values(before), values(after)
    statistics = state.params["statistics"]["observation"]
    seen = (before - statistics.mean[0]) / np.sqrt(statistics.variance[0] + 1e-8)
    net = make_actor_critic(NETWORK, SPEC)
    outputs = np.asarray(jax.jit(net.policy)(state.params["agent"], np.clip(seen, -10, 10).astype(np.float32)), float)
    log_prob = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
    log_prob = np.take_along_axis(log_prob, batch.action.reshape(-1, 1), 1)[:, 0]
    f = g + 0.9 * np.where(batch.terminated.reshape(-1), 0.0, next_h) - h
    reward = np.where(batch.valid, (f - log_prob).reshape(T, B), 0.0).astype(np.float32)
    assert float(metrics["imitation/reward"]) == pytest.approx(reward[batch.valid].mean(), rel=1e-3)
    inner = dataclasses.replace(state, extra=state.extra.agent)
    imitated = dataclasses.replace(batch, reward=reward)
    expected, _ = learn(inner, imitated, jax.random.split(jax.random.key(2))[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), new.params, expected.params)


def test_the_loss_of_airl_is_that_of_its_equation():
    config = dataclasses.replace(CONFIG, algorithm="airl", entropy_coef=0.0)
    expert = expert_of()._replace(log_prob=np.full(50, -0.7, np.float32))
    discriminator = make_discriminator(config, SPEC, expert)
    policy = expert._replace(
        observation=expert.observation[::-1], log_prob=np.linspace(-2, -0.1, 50).astype(np.float32)
    )
    params, weight = discriminator.init(KEY), np.ones(50, np.float32)
    loss, _ = discriminator_loss(discriminator, params, expert, policy, weight)
    d_expert, d_policy = (
        1.0 / (1.0 + np.exp(-np.asarray(discriminator.logits(params, each), float))) for each in (expert, policy)
    )
    np.testing.assert_allclose(loss, -np.log(d_expert).mean() - np.log(1 - d_policy).mean(), rtol=1e-4)


def test_the_discriminator_sees_actions_as_they_are_executed():
    """A Gaussian policy's samples leave the bounds, an expert's recorded actions do not; the environment clips both."""
    discriminator, expert = make_discriminator(CONFIG, CONTINUOUS, expert_of(CONTINUOUS)), expert_of(CONTINUOUS)
    params = discriminator.init(KEY)
    sampled = expert._replace(action=3.0 * expert.action)
    executed = expert._replace(action=np.clip(sampled.action, -2.0, 2.0))
    assert np.any(sampled.action != executed.action)
    logits = [np.asarray(discriminator.logits(params, steps)) for steps in (sampled, executed, expert)]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.any(logits[0] != logits[2])


def test_a_discriminator_tells_an_expert_from_a_policy():
    plain, agent = agents(dataclasses.replace(CONFIG, steps_per_update=50, learning_rate=0.01))
    batch, state, update = batch_of(plain), agent.init(KEY), jax.jit(agent.update)
    for number in range(10):
        state, metrics = update(state, batch, jax.random.key(number))
    assert metrics["imitation/expert_accuracy"] > 0.95
    assert metrics["imitation/policy_accuracy"] > 0.95


@pytest.mark.parametrize("is_tree", [False, True], ids=["many", "tree"])
def test_airl_takes_actions_that_gail_does_not(is_tree, monkeypatch):
    counts, randint = [], jax.random.randint
    monkeypatch.setattr(jax.random, "randint", lambda *drawn: counts.append(drawn[3]) or randint(*drawn))
    many, pairs = MultiDiscreteSpec((2,), (2, 2), (0, 0)), np.ones((T, B, 2), np.int32)
    spec = dataclasses.replace(SPEC, action={"a": many, "b": many} if is_tree else many)
    expert = expert_of()._replace(action=np.arange(100).reshape(50, 2) % 2)
    batch = dataclasses.replace(batch_of(make_a2c(A2CConfig(), SPEC, NETWORK)), action=pairs)
    if is_tree:
        expert = expert._replace(action={"a": expert.action, "b": expert.action})
        batch = dataclasses.replace(batch, action={"a": pairs, "b": pairs})
    config = dataclasses.replace(CONFIG, algorithm="airl")
    agent = with_imitation(make_a2c(A2CConfig(), spec, NETWORK), config, spec, expert)
    jax.eval_shape(agent.update, jax.eval_shape(agent.init, KEY), batch, KEY)
    assert counts[-2:] == [T * B, 50]
    nothing = expert._replace(action=jax.tree.map(lambda leaf: leaf[:0], expert.action))
    with pytest.raises(UserError, match="got none"):
        with_imitation(make_a2c(A2CConfig(), spec, NETWORK), config, spec, nothing)


def test_what_cannot_imitate_is_rejected():
    plain = make_a2c(A2CConfig(), SPEC, NETWORK)
    replaying = make_dqn(DQNConfig(replay=ReplayConfig(), epsilon_start=0.1, epsilon_end=0.1), SPEC, NETWORK)
    stacked = dataclasses.replace(SPEC, observation=ArraySpec((4, 3), "float32", frames=4))
    several = dataclasses.replace(SPEC, action=MultiDiscreteSpec((2,), (2, 2), (0, 0)))
    for agent, spec, message in (
        (replaying, SPEC, "one policy that learns from trajectories"),
        (plain, stacked, "frame_stack 1, got 4"),
        (plain, several, "imitation by GAIL .* use --imitation.algorithm airl"),
    ):
        with pytest.raises(UserError, match=message):
            with_imitation(agent, CONFIG, spec, expert_of())
    with pytest.raises(UserError, match="got none"):
        with_imitation(plain, CONFIG, SPEC, expert_of(count=0))
    remembering = make_a2c(A2CConfig(), SPEC, dataclasses.replace(NETWORK, core="gru"))
    with pytest.raises(UserError, match="AIRL needs the probabilities"):
        with_imitation(remembering, dataclasses.replace(CONFIG, algorithm="airl"), SPEC, expert_of())
    with pytest.raises(UserError, match="algorithm must be one of gail, airl"):
        GAILConfig(algorithm="bc")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="reward must be"):
        GAILConfig(reward="negative")


def test_demonstrations_of_millions_of_steps_are_normalized():
    observation = 1000.0 + np.random.default_rng(0).normal(size=(500_000, 2)).astype(np.float32)
    spec = dataclasses.replace(SPEC, observation=ArraySpec((2,), "float32"))
    expert = Steps(observation, observation, observation, observation)
    normalized = np.asarray(_normalizer(spec, expert)(observation[:100_000]), np.float64)
    np.testing.assert_allclose(np.mean(normalized, 0), 0.0, atol=0.02)
    np.testing.assert_allclose(np.std(normalized, 0), 1.0, atol=0.02)
