"""Ratings and skills: known strengths are recovered, single games by hand and as openskill rates them."""

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.population.ratings import Results, fit_bradley_terry, update_elo, win_probability
from jaxsrl.population.skill import Skill, update_skills


def test_known_strengths_are_within_two_errors():
    random, players, games, within = np.random.default_rng(0), 20, 53, []  # 53 games of each pair: 10,070
    for _ in range(200):
        strength = random.normal(0.0, 200.0, players)
        wins = np.triu(random.binomial(games, win_probability(strength[:, None], strength[None])), 1)
        ratings = fit_bradley_terry(Results(wins + np.tril(games - wins.T, -1)))
        within.append(np.abs(ratings.rating - (strength - strength.mean())) <= 2.0 * ratings.error)
    assert np.mean(within) >= 0.95


def test_two_players_have_the_odds_of_their_games():
    ratings = fit_bradley_terry(Results(np.array([[0.0, 750.0], [250.0, 0.0]])), prior_deviation=1e6)
    difference = ratings.rating[0] - ratings.rating[1]
    assert difference == pytest.approx(400.0 * np.log10(3.0), abs=0.01)
    # The error of a logit is 1 / sqrt(n p q), and each centered rating is half of the difference.
    expected = 400.0 / np.log(10.0) / np.sqrt(1000 * 0.75 * 0.25) / 2.0
    np.testing.assert_allclose(ratings.error, expected, rtol=1e-3)


def test_a_player_who_always_wins_has_a_finite_rating():
    ratings = fit_bradley_terry(Results(np.array([[0.0, 20.0], [0.0, 0.0]])))
    assert 400.0 < ratings.rating[0] < 2000.0
    assert ratings.error[0] > 100.0


def test_points_must_be_square_and_not_negative():
    for points in (np.zeros((2, 3)), np.array([[0.0, -1.0], [0.0, 0.0]])):
        with pytest.raises(UserError, match="expected points"):
            Results(points)


def test_elo_moves_by_the_surprise():
    assert update_elo(1500.0, 1500.0, 1.0) == (1516.0, 1484.0)
    rating, other = update_elo(1900.0, 1500.0, 0.5)
    assert rating == pytest.approx(1900.0 - 32.0 * (10.0 / 11.0 - 0.5))
    assert rating + other == pytest.approx(3400.0)


TEAMS = [[Skill(25, 25 / 3), Skill(30, 4)], [Skill(27, 6)], [Skill(20, 3), Skill(5, 2), Skill(1, 1)]]
# By openskill 6.2.0, BradleyTerryFull with its defaults (tau 25/300).
OPENSKILL = {
    (1, 2, 3): [
        [(25.987857398638575, 8.0907754413698), (30.227678362549938, 3.9742870734958)],
        [(28.57242051306132, 5.759772289647448)],
        [(19.47855513084182, 2.9826559167), (4.768023369696014, 1.99625499385), (0.9417043130085303, 1.0027765278)],
    ],
    (2, 1, 1): [
        [(14.435451929612974, 8.0907754413698), (27.565115158259964, 3.9742870734958)],
        [(29.49792357443308, 5.759772289647448)],
        [(20.745242662926298, 2.9826559167), (5.331538177724344, 1.99625499385), (1.0833154866031713, 1.0027765278)],
    ],
}


@pytest.mark.parametrize("ranks", OPENSKILL)
def test_skills_of_teams_are_those_of_openskill(ranks):
    updated = update_skills(TEAMS, ranks, drift=25 / 300)
    for team, expected in zip(updated, OPENSKILL[ranks], strict=True):
        np.testing.assert_allclose([(player.mean, player.deviation) for player in team], expected, rtol=1e-9)


def test_games_need_two_teams_with_players():
    for teams, ranks in (([[Skill()]], [1]), ([[Skill()], []], [1, 2]), ([[Skill()], [Skill()]], [1])):
        with pytest.raises(UserError, match="at least two teams"):
            update_skills(teams, ranks)
