"""Opponents in a league by role and win rates, computed by hand, and who starts from nothing."""

import numpy as np
import pytest

from jaxsrl.tune.matchmaking import Entry, choose_opponents, starts_again

ENTRIES = [
    Entry("main_agent0", "main_agent", 1),
    Entry("main_exploiter0", "main_exploiter", 1),
    Entry("main_agent0", "main_agent", 2),
    Entry("league_exploiter0", "league_exploiter", 1),
]


def rates(player, against):
    """Win rates of one policy; all others win half of their games."""
    table = np.full((4, 4), 0.5)
    table[player], table[:, player] = against, 1.0 - np.array(against)
    table[player, player] = 0.5
    return table


def test_main_agents_play_themselves_the_past_and_losses():
    match = choose_opponents("main_agent", 2, ENTRIES, rates(2, [0.4, 0.2, 0.5, 0.9]))
    hard = np.array([0.6, 0.8, 0.5, 0.1]) ** 2
    losses = np.array([hard[0], hard[1], 0.0, 0.0])  # a forgotten policy and an exploiter
    expected = (0.5 * hard / hard.sum() + 0.15 * losses / losses.sum()) / 0.65
    assert match.self_share == 0.35
    assert list(match.mixture) == [0, 1, 2, 3]
    np.testing.assert_allclose(list(match.mixture.values()), expected)


def test_main_agents_without_losses_play_themselves_more():
    match = choose_opponents("main_agent", 2, ENTRIES, rates(2, [0.6, 0.4, 0.5, 0.9]))
    hard = np.array([0.4, 0.6, 0.5, 0.1]) ** 2
    assert match.self_share == 0.5
    np.testing.assert_allclose(list(match.mixture.values()), hard / hard.sum())


def test_main_exploiters_meet_the_newest_main_agents():
    assert choose_opponents("main_exploiter", None, ENTRIES, rates(1, [0.5] * 4)).mixture == {2: 1.0}
    assert choose_opponents("main_exploiter", 1, ENTRIES, rates(1, [0.9, 0.5, 0.3, 0.5])).mixture == {2: 1.0}
    hopeless = choose_opponents("main_exploiter", 1, ENTRIES, rates(1, [0.4, 0.5, 0.1, 0.5]))
    assert hopeless.self_share == 0.0
    assert hopeless.mixture == pytest.approx({0: 0.24 / 0.33, 2: 0.09 / 0.33})


def test_league_exploiters_and_best_responses_meet_all():
    match = choose_opponents("league_exploiter", 3, ENTRIES, rates(3, [1.0, 0.0, 0.5, 0.5]))
    assert match.mixture == pytest.approx({1: 1 / 1.5, 2: 0.25 / 1.5, 3: 0.25 / 1.5})
    assert choose_opponents("best_response", None, ENTRIES, np.full((4, 4), 0.5)).mixture == dict.fromkeys(
        range(4), 0.25
    )


def test_exploiters_start_again_when_they_are_done():
    def again(own, win_rate, entries=ENTRIES):
        return [starts_again(own, entries, win_rate, np.random.default_rng(seed)) for seed in range(2000)]

    even = np.full((4, 4), 0.5)
    assert not any(again(2, even))
    assert not any(again(1, even))
    assert all(again(1, rates(1, [0.5, 0.5, 0.71, 0.5])))
    assert all(again(1, even, [ENTRIES[0], Entry("main_exploiter0", "main_exploiter", 4), *ENTRIES[2:]]))
    assert np.mean(again(3, even)) == pytest.approx(0.25, abs=0.03)
    two_mains = [Entry("main_agent1", "main_agent", 1), *ENTRIES[1:]]
    assert not any(again(1, rates(1, [0.6, 0.5, 0.95, 0.5]), two_mains))
    assert all(again(1, rates(1, [0.75, 0.5, 0.71, 0.5]), two_mains))


def test_thousands_of_equal_policies_all_remain_opponents():
    entries = [Entry("main_agent0", "main_agent", age) for age in range(3000)]
    mixture = choose_opponents("best_response", None, entries, np.zeros((1, 1))).mixture
    assert len(mixture) == 3000
    assert sum(mixture.values()) == pytest.approx(1.0)
