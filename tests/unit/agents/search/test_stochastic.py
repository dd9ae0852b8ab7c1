"""Stochastic search on models with known optima, and masks."""

from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from agents.search.model import ILLEGAL, ModelStep, Root
from agents.search.puct import PUCTConfig, puct_search
from agents.search.stochastic import Afterstate, stochastic_search

MCTX: Any = mctx  # fields of its dataclasses are hidden from type checkers
ROWS, ACTIONS, OUTCOMES, STATES = 16, 3, 2, 20
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


def random_model(rows):
    """Tables of states with random afterstates, outcomes, rewards, discounts, logits and values."""
    random = np.random.default_rng(0)
    after, states = (STATES, ACTIONS), (STATES * ACTIONS, OUTCOMES)
    tables = {
        "chance": random.normal(size=(*after, OUTCOMES)),
        "after_value": random.normal(size=after),
        "reward": random.normal(size=states),
        "discount": random.choice([0.0, 0.9, -1.0], states),
        "logits": np.where(random.random((STATES, ACTIONS)) < 0.2, ILLEGAL, random.normal(size=(STATES, ACTIONS))),
        "value": random.normal(size=STATES),
    }
    tables = {name: jnp.array(table, jnp.float32) for name, table in tables.items()}
    tables["next"] = jnp.array(random.integers(0, STATES, states))
    return tables, jnp.array(random.integers(0, STATES, rows))


def table_decide(tables, latent, action, key):
    return Afterstate(
        tables["chance"][latent, action], tables["after_value"][latent, action], latent * ACTIONS + action
    )


def table_chance(tables, latent, outcome, key):
    after = tables["next"][latent, outcome]
    return ModelStep(
        tables["reward"][latent, outcome] + 0.1 * jax.random.normal(key, outcome.shape),
        tables["discount"][latent, outcome],
        tables["logits"][after],
        tables["value"][after],
        after,
    )


def mctx_alone(tables, state, key, config):
    """Calls mctx with a batch of one row, as its documentation says."""

    def decide(tables, key, action, latent):
        half = table_decide(tables, latent, action, key)
        return MCTX.DecisionRecurrentFnOutput(chance_logits=half.logits, afterstate_value=half.value), half.latent

    def chance(tables, key, outcome, latent):
        step = table_chance(tables, latent, outcome, key)
        return MCTX.ChanceRecurrentFnOutput(
            action_logits=step.logits, value=step.value, reward=step.reward, discount=step.discount
        ), step.latent

    root = MCTX.RootFnOutput(
        prior_logits=tables["logits"][state][None], value=tables["value"][state][None], embedding=state[None]
    )
    output = MCTX.stochastic_muzero_policy(
        tables,
        key,
        root,
        decide,
        chance,
        config.num_simulations,
        invalid_actions=root.prior_logits < -1e8,
        max_depth=config.max_depth or None,
        dirichlet_fraction=0.0,
    )
    summary = output.search_tree.summary()
    return output.action[0], summary.visit_counts[0], summary.value[0], output.action_weights[0]


# Without noise, which mctx draws over illegal actions too.
@pytest.mark.parametrize(
    "config", [PUCTConfig(24, dirichlet_fraction=0.0), PUCTConfig(24, max_depth=3, dirichlet_fraction=0.0)]
)
def test_search_equals_mctx_on_a_random_model(config):
    rows = 200
    tables, states = random_model(rows)
    root, keys = (
        Root(tables["logits"][states], tables["value"][states], states),
        jax.random.split(jax.random.key(3), rows),
    )
    search = jax.jit(lambda root, keys: stochastic_search(table_decide, table_chance, tables, root, keys, config))
    result = search(root, keys)
    alone = jax.jit(
        lambda states, keys: jax.lax.map(lambda row: mctx_alone(tables, row[0], row[1], config), (states, keys))
    )
    action, visits, value, policy = alone(states, keys)
    np.testing.assert_allclose(result.policy, policy, atol=1e-6)
    np.testing.assert_array_equal(result.visits, visits)
    np.testing.assert_array_equal(result.action, action)
    np.testing.assert_allclose(result.value, value, atol=1e-5)


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
