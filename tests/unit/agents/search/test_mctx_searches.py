"""Gumbel and PUCT search against mctx called directly, a model with a known optimum, and masks."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from agents.search.gumbel import GumbelConfig, gumbel_search
from agents.search.model import ILLEGAL, ModelStep, Root
from agents.search.puct import PUCTConfig, noisy_logits, puct_search, result_of_visits
from envpool_bridge.errors import UserError

MCTX: Any = mctx  # fields of its dataclasses are hidden from type checkers
ROWS, ACTIONS, STATES = 1000, 4, 32
SEARCHES = {
    "gumbel": (gumbel_search, GumbelConfig(12)),
    # Without noise, which mctx draws over illegal actions too.
    "puct": (puct_search, PUCTConfig(12, dirichlet_fraction=0.0)),
    "gumbel-shallow": (gumbel_search, GumbelConfig(12, max_depth=2)),
    "puct-shallow": (puct_search, PUCTConfig(12, max_depth=2, dirichlet_fraction=0.0)),
}


def random_models(seed):
    """Tables of ROWS models with random transitions, rewards, discounts, logits and values, and a tenth of illegal actions."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(ROWS, STATES, ACTIONS)).astype(np.float32)
    legal = random.random((ROWS, STATES, ACTIONS)) > 0.1
    legal[..., 0] = True
    return {
        "next": jnp.array(random.integers(0, STATES, (ROWS, STATES, ACTIONS))),
        "reward": jnp.array(random.normal(size=(ROWS, STATES, ACTIONS)), jnp.float32),
        "discount": jnp.array(random.choice([0.0, 0.9, 1.0, -1.0], (ROWS, STATES, ACTIONS)), jnp.float32),
        "logits": jnp.array(np.where(legal, logits, ILLEGAL)),
        "value": jnp.array(random.normal(size=(ROWS, STATES)), jnp.float32),
    }


def table_step(models, latent, action, key):
    row, state = latent
    after = models["next"][row, state, action]
    return ModelStep(
        models["reward"][row, state, action] + 0.1 * jax.random.normal(key, action.shape),
        models["discount"][row, state, action],
        models["logits"][row, after],
        models["value"][row, after],
        (row, after),
    )


def table_root(models):
    rows = jnp.arange(ROWS)
    return Root(models["logits"][:, 0], models["value"][:, 0], (rows, jnp.zeros(ROWS, int)))


def mctx_alone(name, models, row, key):
    """Calls mctx with a batch of one row, as its documentation says."""

    def recurrent(params, key, action, latent):
        after = table_step(params, latent, action, key)
        output = MCTX.RecurrentFnOutput(
            reward=after.reward, discount=after.discount, prior_logits=after.logits, value=after.value
        )
        return output, after.latent

    root = jax.tree.map(lambda leaf: leaf[row][None], table_root(models))
    root = MCTX.RootFnOutput(prior_logits=root.logits, value=root.value, embedding=root.latent)
    invalid = root.prior_logits < -1e8
    policy = MCTX.gumbel_muzero_policy
    if name.startswith("puct"):
        policy = partial(MCTX.muzero_policy, dirichlet_fraction=0.0)
    depth = SEARCHES[name][1].max_depth or None
    output = policy(models, key, root, recurrent, 12, invalid_actions=invalid, max_depth=depth)
    summary = output.search_tree.summary()
    return output.action[0], summary.visit_counts[0], summary.value[0], output.action_weights[0]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
@pytest.mark.parametrize("name", SEARCHES)
def test_search_equals_mctx_on_random_models(name, seed):
    models, (search, config) = random_models(seed), SEARCHES[name]
    keys = jax.random.split(jax.random.key(1), ROWS)
    result = jax.jit(lambda models, keys: search(table_step, models, table_root(models), keys, config))(models, keys)
    alone = jax.jit(
        lambda models, keys: jax.lax.map(lambda row: mctx_alone(name, models, row[0], row[1]), (jnp.arange(ROWS), keys))
    )
    action, visits, value, policy = alone(models, keys)
    np.testing.assert_array_equal(result.action, action)
    np.testing.assert_array_equal(result.visits, visits)
    np.testing.assert_allclose(result.value, value, atol=1e-6)
    np.testing.assert_allclose(result.policy, policy, atol=1e-5)
    illegal = np.asarray(models["logits"][:, 0]) < -1e8
    assert (np.asarray(result.visits)[illegal] == 0).all()
    assert (np.asarray(result.policy)[illegal] < 1e-6).all()


def test_noise_of_puct_is_dirichlet_over_legal_actions():
    legal = np.array([True, False, True, True, False])
    prior = np.array([0.5, 0.0, 0.3, 0.2, 0.0])
    logits = jnp.tile(jnp.where(legal, jnp.log(jnp.maximum(jnp.array(prior), 1e-9)), ILLEGAL), (20_000, 1))
    keys = jax.random.split(jax.random.key(0), 20_000)
    noisy = np.asarray(jax.nn.softmax(noisy_logits(logits, keys, PUCTConfig(dirichlet_alpha=0.3), 1.0)), np.float64)
    drawn = (noisy - 0.75 * prior) / 0.25
    np.testing.assert_allclose(drawn[:, ~legal], 0.0, atol=1e-6)
    np.testing.assert_allclose(drawn.sum(-1), 1.0, atol=1e-5)
    reference = np.random.default_rng(0).dirichlet([0.3] * 3, 20_000)
    np.testing.assert_allclose(drawn[:, legal].mean(0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(drawn[:, legal].std(0), reference.std(0), atol=0.01)


def test_moves_without_a_visit_are_never_played():
    visits, keys = (
        jnp.tile(jnp.array([0.0, 3.0, 1.0] + [0.0] * 500), (2_000, 1)),
        jax.random.split(jax.random.key(0), 2_000),
    )
    action = np.asarray(result_of_visits(visits, jnp.zeros(2_000), keys, 20.0).action)
    assert set(action) == {1, 2}


def maze_step(params, latent, action, key):
    """Three choices: only right, right, right gives 1; the prior prefers left, which ends with 0."""
    place = latent + 1
    is_lost, is_won = action == 0, (place >= 3) & (action == 1)
    reward = jnp.where(is_won, 1.0, 0.0)
    discount = jnp.where(is_won | is_lost, 0.0, 1.0)
    return ModelStep(reward, discount, maze_logits(len(action)), jnp.zeros(len(action)), place)


def maze_logits(rows):
    return jnp.tile(jnp.array([0.5, -0.5]), (rows, 1))


@pytest.mark.parametrize(("name", "simulations"), [("gumbel", 64), ("puct", 200)])
def test_search_finds_what_the_prior_would_miss(name, simulations):
    rows = 8
    root = Root(maze_logits(rows), jnp.zeros(rows), jnp.zeros(rows, int))
    keys = jax.random.split(jax.random.key(0), rows)
    search = SEARCHES[name][0]
    if name == "gumbel":
        config, options = GumbelConfig(simulations, value_scale=1.0), {"gumbel_scale": 0.0}
    else:
        config, options = PUCTConfig(simulations), {"temperature": 0.0, "noise": 0.0}
    result = jax.jit(lambda root, keys: search(maze_step, None, root, keys, config, **options))(root, keys)
    assert (np.asarray(result.action) == 1).all()
    assert (np.asarray(result.policy)[:, 1] > 0.5).all()
    np.testing.assert_allclose(np.asarray(result.visits).sum(-1), simulations)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_root_without_legal_actions_gets_a_finite_policy(name):
    """Agents act once more on the observation that ends an episode, where nothing may be legal."""
    rows, (search, config) = 4, SEARCHES[name]
    logits = maze_logits(rows).at[0].set(ILLEGAL)
    root, keys = Root(logits, jnp.zeros(rows), jnp.zeros(rows, int)), jax.random.split(jax.random.key(0), rows)
    result = jax.jit(lambda root, keys: search(maze_step, None, root, keys, config))(root, keys)
    assert int(result.action[0]) == 0
    np.testing.assert_allclose(result.policy.sum(-1), 1.0, atol=1e-6)
    assert np.isfinite(result.value).all()


def test_sharded_rows_are_not_gathered():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    root = Root(maze_logits(8), jnp.zeros(8), jnp.zeros(8, int))
    root, keys = jax.device_put((root, jax.random.split(jax.random.key(0), 8)), rows)
    search = jax.jit(lambda root, keys: gumbel_search(maze_step, None, root, keys, GumbelConfig(4)))
    assert "all-gather" not in str(search.lower(root, keys).compile().as_text())


@pytest.mark.parametrize("name", SEARCHES)
def test_a_rows_result_does_not_depend_on_other_rows(name):
    models, (search, config) = random_models(0), SEARCHES[name]
    others = {key: leaf.at[1::2].set(random_models(1)[key][1::2]) for key, leaf in models.items()}
    keys = jax.random.split(jax.random.key(1), ROWS)
    run = jax.jit(lambda models: search(table_step, models, table_root(models), keys, config))
    for one, other in zip(run(models), run(others), strict=True):
        np.testing.assert_array_equal(one[::2], other[::2])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GumbelConfig(0), "num_simulations must be at least 1"),
        (lambda: GumbelConfig(max_considered=0), "max_considered must be at least 1"),
        (lambda: GumbelConfig(max_depth=-1), "max_depth must be at least 0"),
        (lambda: PUCTConfig(0), "num_simulations must be at least 1"),
        (lambda: PUCTConfig(max_depth=-1), "max_depth must be at least 0"),
        (lambda: PUCTConfig(dirichlet_fraction=2.0), "must lie in"),
    ],
)
def test_config_rejects_bad_settings(make, says):
    with pytest.raises(UserError, match=says):
        make()
