"""PSRO with exact best responses: Kuhn poker by open_spiel, and rock-paper-scissors by hand."""

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.population.meta_game import nash, policy_values, uniform
from jaxsrl.population.psro import add_responses, start_psro

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def play(profile):
    value = ROCK_PAPER_SCISSORS[profile[0], profile[1]]
    return value, -value


def respond(player, policies, mixtures):
    """The best of rock, paper and scissors against the other's mixture."""
    other = 1 - player
    share = np.zeros(3)
    np.add.at(share, list(policies[other]), mixtures[other])
    return int(np.argmax(ROCK_PAPER_SCISSORS @ share))


def test_rock_paper_scissors_needs_each_of_its_three_policies():
    sets = start_psro([0, 0], play)
    for _ in range(4):
        sets = add_responses(sets, respond, play)
    assert set(sets.policies[0]) == {0, 1, 2}
    for known, mixture in zip(sets.policies, sets.mixtures, strict=True):
        share = np.zeros(3)
        np.add.at(share, list(known), mixture)
        np.testing.assert_allclose(share, 1 / 3, atol=1e-6)


def test_only_games_with_new_policies_are_played():
    played = []

    def count(profile):
        played.append(tuple(profile))
        return play(profile)

    sets = start_psro([0, 0], count)
    for size in (2, 3):
        del played[:]
        sets = add_responses(sets, respond, count, uniform)
        assert len(played) == size**2 - (size - 1) ** 2
        assert sets.payoffs[0].shape == (size, size)
    np.testing.assert_array_equal(sets.mixtures[0], [1 / 3] * 3)
    with pytest.raises(UserError, match="at least two players"):
        start_psro([0], play)


def test_kuhn_poker_is_solved_within_twelve_iterations():
    pyspiel = pytest.importorskip("pyspiel")
    from open_spiel.python import policy as policies_of
    from open_spiel.python.algorithms import best_response, expected_game_score, exploitability, policy_aggregator

    game = pyspiel.load_game("kuhn_poker")

    def payoff(profile):
        return expected_game_score.policy_value(game.new_initial_state(), profile)

    def mixed(policies, mixtures):
        aggregator = policy_aggregator.PolicyAggregator(game)
        return aggregator.aggregate([0, 1], [list(known) for known in policies], list(mixtures))

    def respond_exactly(player, policies, mixtures):
        best = best_response.BestResponsePolicy(game, player, mixed(policies, mixtures))
        table = policies_of.TabularPolicy(game)  # uniform where the others never let the player go
        for key, place in table.state_lookup.items():
            if key in best.infosets:
                table.action_probability_array[place] = np.eye(2)[best.best_response_action(key)]
        return table

    first = policies_of.UniformRandomPolicy(game)
    assert exploitability.nash_conv(game, first) == pytest.approx(11 / 12)
    sets = start_psro([first, first], payoff)
    distances = []
    for _ in range(12):
        sets = add_responses(sets, respond_exactly, payoff)
        distances.append(exploitability.nash_conv(game, mixed(sets.policies, sets.mixtures)))
        if distances[-1] < 1e-6:
            break
    assert min(distances) <= 0.01
    value = sets.mixtures[0] @ policy_values(sets.payoffs, sets.mixtures)[0]
    assert value == pytest.approx(-1 / 18, abs=0.01)
    assert nash(sets.payoffs)[0].shape == sets.mixtures[0].shape
