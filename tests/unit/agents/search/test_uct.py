"""UCT against exact values of tic-tac-toe, and its rules on small models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.search.model import ILLEGAL, ModelStep, Root
from agents.search.uct import UCTConfig, uct_search
from envpool_bridge.errors import UserError
from tests.support.tic_tac_toe import action_values, all_boards, make_root, step


def search(boards, simulations, seed=0, **settings):
    config = UCTConfig(simulations, **settings)
    keys = jax.random.split(jax.random.key(seed), len(boards))
    return jax.jit(lambda root, keys: uct_search(step, None, root, keys, config))(make_root(boards), keys)


def assert_optimal(boards, result):
    for board, action in zip(boards.tolist(), np.asarray(result.action).tolist(), strict=True):
        values = action_values(tuple(board))
        assert values[action] == max(values.values()), (board, action, values)


def test_uct_solves_late_positions_of_tic_tac_toe():
    boards = all_boards()
    late = boards[(boards != 0).sum(-1) >= 5]
    result = search(late, 150)
    assert_optimal(late, result)
    exact = [max(action_values(tuple(board)).values()) for board in late.tolist()]
    np.testing.assert_array_equal(result.value, exact)


@pytest.mark.slow
def test_uct_plays_every_position_of_tic_tac_toe_optimally():
    boards = all_boards()
    assert len(boards) == 4520
    early = (boards != 0).sum(-1) < 4
    assert_optimal(boards[~early], search(boards[~early], 600))
    assert_optimal(boards[early], search(boards[early], 4000))


def test_uct_visits_only_legal_actions():
    boards = all_boards()[::40]
    result = search(boards, 30)
    assert (np.asarray(result.visits)[boards != 0] == 0).all()
    assert (boards[np.arange(len(boards)), result.action] == 0).all()
    np.testing.assert_allclose(result.policy.sum(-1), 1.0, atol=1e-6)


def test_uct_rows_do_not_depend_on_other_rows():
    boards = all_boards()[1000:1016]
    whole = search(boards, 40)
    changed = boards.copy()
    changed[1::2] = all_boards()[2000:2008]
    part = search(changed, 40)
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one[::2], other[::2])


def test_uct_stops_where_the_root_is_proved():
    win_at_two = np.array([[1, 1, 0, -1, -1, 0, 0, 0, 0]])
    result = search(win_at_two, 500)
    assert int(result.action[0]) == 2
    assert float(result.value[0]) == 1.0
    assert int(result.visits.sum()) < 50


def bandit(params, latent, action, key):
    """One action ends the episode with the reward of its number; illegal ones would give more."""
    rewards = jnp.array([0.1, 0.9, 0.3, 5.0])
    zeros = jnp.zeros(len(action))
    return ModelStep(rewards[action], zeros, jnp.zeros((len(action), 4)), zeros, latent)


def test_uct_proves_returns_of_one_player():
    root = Root(jnp.array([[0.0, 0.0, 0.0, ILLEGAL]]), jnp.zeros(1), jnp.zeros((1, 1)))
    keys = jax.random.split(jax.random.key(0), 1)
    result = uct_search(bandit, None, root, keys, UCTConfig(10, best_return=np.inf))
    assert int(result.action[0]) == 1
    np.testing.assert_allclose(result.value, [0.9])
    assert int(result.visits.sum()) == 3  # each legal action once: then everything is proved


def chain(params, latent, action, key):
    """Action 1 moves on with discount 0.5, action 0 ends with 0; the fourth state gives 8 and ends."""
    place = latent + (action == 1)
    done = (action == 0) | (place >= 3)
    reward = jnp.where(place >= 3, 8.0, 0.0)
    discount = jnp.where(done, 0.0, 0.5)
    return ModelStep(reward, discount, jnp.zeros((len(action), 2)), jnp.full(len(action), 7.0), place)


@pytest.mark.parametrize(("length", "value"), [(0, 3.5), (100, None)])
def test_uct_evaluates_new_states_by_rollouts_or_the_model(length, value):
    root = Root(jnp.array([[ILLEGAL, 0.0]]), jnp.zeros(1), jnp.zeros(1, int))
    keys = jax.random.split(jax.random.key(0), 1)
    result = uct_search(chain, None, root, keys, UCTConfig(1, rollout_length=length, best_return=np.inf))
    if value is not None:
        np.testing.assert_allclose(result.value, [value])  # 0.5 times the model's value
    whole = uct_search(chain, None, root, keys, UCTConfig(50, rollout_length=length, best_return=np.inf))
    np.testing.assert_allclose(whole.value, [0.25 * 8.0])


def test_config_rejects_bad_settings():
    with pytest.raises(UserError, match="num_simulations must be at least 1"):
        UCTConfig(0)
    with pytest.raises(UserError, match="rollout_length must be at least 0"):
        UCTConfig(1, rollout_length=-1)
