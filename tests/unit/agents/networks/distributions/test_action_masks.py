"""Masked actions: never taken, no part in any number, and no NaN in a gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from agents.api import Mode
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.distributions import ILLEGAL, categorical, find_mask, mask_logits, multi_categorical
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec

LOGITS = np.array([2.0, -1.0, 0.5, 3.0], np.float32)
MASK = np.array([1, 1, 0, 0], np.int8)


def spec_with(action, size) -> EnvSpec:
    observation = {"seen": ArraySpec((3,), "float32"), "action_mask": ArraySpec((size,), "int8", 0, 1)}
    return EnvSpec("game", observation, action, action_mask=("action_mask",))


def test_masked_distribution_equals_one_over_legal_actions():
    masked = mask_logits(jnp.asarray(LOGITS), jnp.asarray(MASK))
    distribution = categorical(4)
    expected = scipy.special.log_softmax(LOGITS[:2])
    got = [float(distribution.log_prob(masked, jnp.int32(action))) for action in range(4)]
    np.testing.assert_allclose(got[:2], expected, rtol=1e-5)
    assert max(got[2:]) < -1e8
    assert np.isfinite(got).all()
    assert float(distribution.entropy(masked)) == pytest.approx(scipy.stats.entropy(np.exp(expected)), rel=1e-5)
    assert int(distribution.mode(masked)) == 0  # 3 has the largest logit
    samples = distribution.sample(jnp.broadcast_to(masked, (20_000, 4)), jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(np.bincount(samples, minlength=4) / 20_000, [*np.exp(expected), 0, 0], atol=0.015)
    assert set(np.unique(samples)) == {0, 1}


def test_masked_gradients_are_zero_for_illegal_actions():
    distribution = categorical(4)

    def both(logits, mask, action):
        masked = mask_logits(logits, mask)
        return distribution.log_prob(masked, action) + 0.3 * distribution.entropy(masked)

    def of_two(logits):
        return categorical(2).log_prob(logits, jnp.int32(1)) + 0.3 * categorical(2).entropy(logits)

    got = jax.grad(both)(jnp.asarray(LOGITS), jnp.asarray(MASK), jnp.int32(1))
    np.testing.assert_allclose(got[:2], jax.grad(of_two)(jnp.asarray(LOGITS[:2])), rtol=1e-5)
    np.testing.assert_array_equal(got[2:], 0.0)
    for mask in (np.zeros(4), np.eye(4)[2]):  # a row about to reset; a forced move
        for action in range(4):
            gradient = jax.grad(both)(jnp.asarray(LOGITS), jnp.asarray(mask), jnp.int32(action))
            assert np.isfinite(gradient).all()


def test_mask_of_multi_discrete_action_by_element():
    sizes, mask = (2, 3, 4), np.array([0, 1, 1, 0, 1, 1, 0, 0, 1], np.int8)
    distribution = multi_categorical(sizes, (3,))
    logits = np.random.default_rng(0).normal(size=9).astype(np.float32)
    masked = mask_logits(jnp.asarray(logits), jnp.asarray(mask))
    samples = np.asarray(
        distribution.sample(jnp.broadcast_to(masked, (5000, 9)), jax.random.split(jax.random.key(0), 5000))
    )
    assert [sorted(set(samples[:, element])) for element in range(3)] == [[1], [0, 2], [0, 3]]
    parts = [logits[1:2], logits[[2, 4]], logits[[5, 8]]]
    expected = sum(scipy.special.log_softmax(part)[-1] for part in parts)
    assert float(distribution.log_prob(masked, jnp.array([1, 2, 3]))) == pytest.approx(expected, rel=1e-5)
    entropy = sum(scipy.stats.entropy(scipy.special.softmax(part)) for part in parts)
    assert float(distribution.entropy(masked)) == pytest.approx(entropy, rel=1e-5)
    assert np.isfinite(jax.grad(lambda x: distribution.entropy(mask_logits(x, mask)))(jnp.asarray(logits))).all()


def test_mask_without_legal_value_samples_valid_values():
    distribution = multi_categorical((2, 4), (2,))
    masked = mask_logits(jnp.zeros((100, 6)), jnp.zeros((100, 6)))
    samples = np.asarray(distribution.sample(masked, jax.random.split(jax.random.key(0), 100)))
    assert (samples < np.array([2, 4])).all()
    # Neither is likelier than another, and the narrower element has no more values than it has.
    np.testing.assert_allclose(distribution.log_prob(masked, samples), -np.log(2 * 4), rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(masked), np.log(2 * 4), rtol=1e-5)


ACTIONS = [
    (DiscreteSpec(4), 4, lambda action: action[:, None]),
    (MultiDiscreteSpec((2,), (2, 3), (0, 0)), 5, lambda action: action),
    (
        {"kind": DiscreteSpec(4), "amount": ArraySpec((2,), "float32")},
        4,
        lambda action: action["kind"][:, None],
    ),
]


@pytest.mark.parametrize(("action", "size", "choices"), ACTIONS)
@pytest.mark.parametrize("mode", Mode)
def test_agent_acts_legally_and_mask_is_no_input(action, size, choices, mode):
    spec = spec_with(action, size)
    agent = make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(8,)))
    params = agent.init(jax.random.key(0)).params
    rng = np.random.default_rng(0)
    sizes = [4] if size == 4 else [2, 3]
    masks = [np.eye(part, dtype=np.int8)[rng.integers(0, part, 200)] for part in sizes]
    observation = {
        "seen": rng.normal(size=(200, 3)).astype(np.float32),
        "action_mask": np.concatenate(masks, axis=-1),
    }
    taken, extras, _ = agent.act(params, observation, (), None, jax.random.split(jax.random.key(1), 200), mode)
    np.testing.assert_array_equal(choices(taken), np.stack([mask.argmax(-1) for mask in masks], axis=-1))
    assert np.isfinite(extras["behavior_log_prob"]).all()
    net = make_actor_critic(NetworkConfig(hidden_sizes=(8,)), spec)
    other = {**observation, "action_mask": np.ones_like(observation["action_mask"])}
    np.testing.assert_array_equal(jax.jit(net.value)(params, observation), jax.jit(net.value)(params, other))


def test_only_the_one_discrete_leaf_of_an_action_is_masked():
    spec = spec_with({"amount": ArraySpec((2,), "float32"), "kind": DiscreteSpec(3)}, 3)
    net = make_actor_critic(NetworkConfig(hidden_sizes=(8,)), spec)
    observation = {"seen": jnp.ones((1, 3)), "action_mask": jnp.array([[0, 1, 0]])}
    parameters = jax.jit(net.policy)(jax.jit(net.init)(jax.random.key(0)), observation)[0]
    np.testing.assert_array_equal(parameters == ILLEGAL, [False] * 4 + [True, False, True])


def test_invalid_mask_is_rejected_by_name():
    with pytest.raises(UserError, match=r"observation\['action_mask'\] to have shape \(5,\), one element .* action"):
        find_mask(spec_with(DiscreteSpec(5), 4))
    several = {"a": DiscreteSpec(2), "b": (DiscreteSpec(2),)}
    with pytest.raises(UserError, match=r"exactly one discrete leaf .* got action\['a'\], action\['b'\]\[0\]"):
        find_mask(spec_with(several, 4))
    with pytest.raises(UserError, match="exactly one discrete leaf of the action to mask, got none"):
        find_mask(spec_with(ArraySpec((2,), "float32"), 2))
    lost = EnvSpec("game", ArraySpec((3,), "float32"), DiscreteSpec(2), action_mask=("legal",))
    with pytest.raises(UserError, match=r"game: expected the action mask at observation\['legal'\]"):
        find_mask(lost)
