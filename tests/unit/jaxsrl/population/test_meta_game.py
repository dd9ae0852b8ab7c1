"""Solvers of meta-games: games with known equilibria, three players by loops, and open_spiel's dynamics."""

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.population.meta_game import (
    SOLVERS,
    nash,
    nash_average,
    nash_conv,
    policy_values,
    projected_replicator_dynamics,
    regret_matching,
)

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
BIASED = np.array([[0.0, -2.0, 1.0], [2.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


@pytest.mark.parametrize("name", SOLVERS)
def test_rock_paper_scissors_is_solved_by_thirds(name):
    options = {} if name in ("uniform", "nash") else {"num_steps": 3000}
    for mixture in SOLVERS[name]([ROCK_PAPER_SCISSORS, -ROCK_PAPER_SCISSORS], **options):
        np.testing.assert_allclose(mixture, 1 / 3, atol=0.02)


@pytest.mark.parametrize(("solve", "tolerance"), [(nash, 1e-9), (regret_matching, 0.03)])
def test_a_biased_game_is_solved_by_its_equilibrium(solve, tolerance):
    payoffs = [BIASED, -BIASED]
    mixtures = solve(payoffs)[:2] if solve is nash else solve(payoffs, num_steps=5000)
    np.testing.assert_allclose(mixtures[0], [0.25, 0.25, 0.5], atol=tolerance)
    assert nash_conv(payoffs, mixtures) < 4 * tolerance + 1e-9


def test_unequal_numbers_of_policies():
    # Matching pennies with a third column that is worse for the column player.
    payoff = np.array([[1.0, -1.0, 2.0], [-1.0, 1.0, 2.0]])
    rows, columns = nash([payoff, -payoff])
    np.testing.assert_allclose(rows, 0.5, atol=1e-9)
    np.testing.assert_allclose(columns, [0.5, 0.5, 0.0], atol=1e-9)


def test_replicator_dynamics_are_those_of_open_spiel():
    spiel = pytest.importorskip("open_spiel.python.algorithms.projected_replicator_dynamics")
    payoffs = [BIASED, -BIASED]
    options = {"prd_iterations": 2000, "prd_dt": 1e-2, "prd_gamma": 1e-3}
    expected = spiel.projected_replicator_dynamics(payoffs, **options)
    actual = projected_replicator_dynamics(payoffs, num_steps=2000, step_size=1e-2, least=1e-3)
    np.testing.assert_allclose(actual, expected, atol=0.01)


def test_values_of_three_players_are_sums_over_the_others():
    random = np.random.default_rng(0)
    payoffs = [random.normal(size=(2, 3, 4)) for _ in range(3)]
    mixtures = [random.dirichlet(np.ones(count)) for count in (2, 3, 4)]
    expected = [np.zeros(count) for count in (2, 3, 4)]
    for place in np.ndindex(2, 3, 4):
        for player in range(3):
            others = np.prod([mixtures[n][place[n]] for n in range(3) if n != player])
            expected[player][place[player]] += payoffs[player][place] * others
    for value, wanted in zip(policy_values(payoffs, mixtures), expected, strict=True):
        np.testing.assert_allclose(value, wanted)


def test_a_copy_of_a_player_changes_no_nash_average():
    strong = np.array([[0.0, 0.4], [-0.4, 0.0]])
    np.testing.assert_allclose(nash_average(strong)[0], [1.0, 0.0], atol=1e-6)
    cycle = 0.3 * ROCK_PAPER_SCISSORS
    places = [0, 0, 1, 2]
    mixture, rating = nash_average(cycle[np.ix_(places, places)])
    np.testing.assert_allclose(mixture, [1 / 6, 1 / 6, 1 / 3, 1 / 3], atol=1e-3)
    np.testing.assert_allclose(rating, 0.0, atol=1e-3)


def test_games_that_a_solver_does_not_solve_are_rejected():
    with pytest.raises(UserError, match="payoffs sum to zero"):
        nash([BIASED, BIASED])
    with pytest.raises(UserError, match="antisymmetric"):
        nash_average(np.ones((2, 2)))
