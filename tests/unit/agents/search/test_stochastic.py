"""Stochastic search on models with known optima, and masks."""

import jax
import jax.numpy as jnp
import numpy as np

from agents.search.model import ILLEGAL, ModelStep, Root
from agents.search.puct import PUCTConfig, puct_search
from agents.search.stochastic import Afterstate, stochastic_search

ROWS, ACTIONS, OUTCOMES = 16, 3, 2
# Rewards [action, outcome] of one step. Action 0 is best on average, action 1 has the best outcome.
REWARDS = jnp.array([[0.6, 0.6], [1.0, -1.0], [0.4, 0.5]])
PROBABILITIES = jnp.array([[0.5, 0.5], [0.75, 0.25], [0.9, 0.1]])


def decide(params, latent, action, key):
    return Afterstate(jnp.log(PROBABILITIES[action]), jnp.zeros(len(action)), action)


def chance(params, latent, outcome, key):
    rows = len(outcome)
    return ModelStep(REWARDS[latent, outcome], jnp.zeros(rows), jnp.zeros((rows, ACTIONS)), jnp.zeros(rows), latent)


def run_search(logits, config, **options):
    root = Root(logits, jnp.zeros(len(logits)), jnp.zeros(len(logits), int))
    keys = jax.random.split(jax.random.key(0), len(logits))
    search = jax.jit(lambda root, keys: stochastic_search(decide, chance, None, root, keys, config, **options))
    return search(root, keys)


def test_search_maximizes_the_expected_reward():
    result = run_search(jnp.zeros((ROWS, ACTIONS)), PUCTConfig(100), temperature=0.0, noise=0.0)
    np.testing.assert_array_equal(result.action, 0)
    np.testing.assert_allclose(np.asarray(result.visits).sum(-1), 100)
    np.testing.assert_allclose(result.policy, np.asarray(result.visits) / 100, atol=1e-6)


def test_a_deterministic_model_would_choose_the_gamble():
    """With the best outcome as the only one, action 1 looks best: the same search needs chance nodes to see the other."""

    def best_outcome(params, latent, action, key):
        rows = len(action)
        return ModelStep(REWARDS[action].max(-1), jnp.zeros(rows), jnp.zeros((rows, ACTIONS)), jnp.zeros(rows), latent)

    root = Root(jnp.zeros((ROWS, ACTIONS)), jnp.zeros(ROWS), jnp.zeros(ROWS, int))
    keys = jax.random.split(jax.random.key(0), ROWS)
    result = puct_search(best_outcome, None, root, keys, PUCTConfig(50), temperature=0.0, noise=0.0)
    np.testing.assert_array_equal(result.action, 1)


def test_visits_of_chance_approach_its_probabilities():
    """The value of a root with one legal action is the mean of its outcomes, weighted by visits."""
    logits = jnp.tile(jnp.array([ILLEGAL, 0.0, ILLEGAL]), (ROWS, 1))
    result = run_search(logits, PUCTConfig(400), temperature=0.0, noise=0.0)
    np.testing.assert_array_equal(result.action, 1)
    np.testing.assert_allclose(result.value, 0.75 * 1.0 - 0.25 * 1.0, atol=0.01)


def test_illegal_actions_are_never_taken():
    legal = np.random.default_rng(0).random((512, ACTIONS)) > 0.4
    legal[np.arange(512), np.arange(512) % ACTIONS] = True
    result = run_search(jnp.where(jnp.array(legal), 0.0, ILLEGAL), PUCTConfig(20))
    assert legal[np.arange(512), np.asarray(result.action)].all()
    assert (np.asarray(result.visits)[~legal] == 0).all()


def test_a_rows_result_does_not_depend_on_other_rows():
    logits = jnp.array(np.random.default_rng(1).normal(size=(ROWS, ACTIONS)), jnp.float32)
    others = logits.at[1::2].set(0.0)
    for one, other in zip(run_search(logits, PUCTConfig(20)), run_search(others, PUCTConfig(20)), strict=True):
        np.testing.assert_array_equal(one[::2], other[::2])
