"""Exploration rates against hand values, and choices against their frequencies."""

import jax
import numpy as np
import pytest

from agents.ops.epsilon_greedy import (
    apex_epsilon_exponents,
    epsilon_greedy,
    epsilon_schedule,
    greedy,
    select_action,
)
from envpool_bridge.errors import UserError

choose = jax.jit(epsilon_greedy)


def test_epsilon_decays_linearly_and_stays():
    schedule = epsilon_schedule(1.0, 0.2, 0.5, total_updates=100)
    epsilons = [float(schedule(np.int32(n))) for n in (0, 25, 50, 51, 1000)]
    np.testing.assert_allclose(epsilons, [1.0, 0.6, 0.2, 0.2, 0.2], rtol=1e-6)


def test_changing_epsilon_needs_total_updates():
    with pytest.raises(UserError, match=r"total_updates=0; set it, or epsilon_start equal to epsilon_end"):
        epsilon_schedule(1.0, 0.05, 0.5, 0)
    assert float(epsilon_schedule(0.1, 0.1, 0.5, 0)(np.int32(7))) == np.float32(0.1)


def test_apex_exponents_match_hand_values():
    # eps^(1 + 7 i / 3) of four rows, by hand for eps = 0.4
    expected = [0.4, 0.4 ** (10 / 3), 0.4 ** (17 / 3), 0.4**8]
    np.testing.assert_allclose(0.4 ** apex_epsilon_exponents(7.0, 4), expected, rtol=1e-6)
    assert apex_epsilon_exponents(7.0, 1).tolist() == [1.0]


def test_greedy_selects_the_best_legal_action():
    preference = np.array([[1.0, 3.0, 2.0], [-5.0, -1.0, -9.0], [1.0, 2.0, 3.0]])
    legal = np.array([[1, 0, 1], [1, 0, 1], [0, 0, 0]], np.int8)
    keys = jax.random.split(jax.random.key(0), 3)
    assert choose(preference, legal, np.float32(0.0), keys).tolist() == [2, 0, 0]
    assert greedy(preference, None).tolist() == [1, 1, 2]


def test_random_actions_are_uniform_over_legal_ones():
    rows = 30_000
    preference = np.tile(np.array([0.0, 9.0, 1.0, 2.0], np.float32), (rows, 1))
    legal = np.tile(np.array([True, False, True, True]), (rows, 1))
    epsilon = np.where(np.arange(rows) < rows // 2, 0.6, 0.0)
    action = np.asarray(choose(preference, legal, epsilon, jax.random.split(jax.random.key(1), rows)))
    assert (action[rows // 2 :] == 3).all()
    share = np.bincount(action[: rows // 2], minlength=4) / (rows // 2)
    # a third of 0.6 each, the rest is greedy: five standard deviations are 0.017
    np.testing.assert_allclose(share, [0.2, 0.0, 0.2, 0.6], atol=0.02)


def test_a_rows_choice_depends_on_its_own_key_alone():
    preference, keys = np.zeros((8, 5)), jax.random.split(jax.random.key(2), 8)
    all_rows = choose(preference, None, np.float32(0.9), keys)
    some = choose(preference[3:5], None, np.float32(0.9), keys[3:5])
    assert some.tolist() == all_rows[3:5].tolist()
    assert len(set(all_rows.tolist())) > 1


def test_select_action_equals_indexing():
    rng = np.random.default_rng(3)
    outputs, action = rng.normal(size=(4, 2, 5, 3)).astype(np.float32), rng.integers(0, 5, (4, 2))
    expected = np.take_along_axis(outputs, action[..., None, None], axis=2)[:, :, 0]
    np.testing.assert_array_equal(select_action(outputs, action), expected)
    np.testing.assert_array_equal(select_action(outputs[..., 0], action), expected[..., 0])
