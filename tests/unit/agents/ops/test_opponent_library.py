"""The library of past selves keeps the newest members, counts games, and draws with the probabilities of its rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.opponent_library import (
    add_member,
    count_games,
    draw_members,
    holds,
    init_library,
    probabilities,
    take_members,
    win_rates,
)


def params(number):
    return {"w": jnp.full((2,), float(number)), "n": jnp.int32(number)}


def filled(entered, size=3):
    library = init_library(params(0), size)
    for number in range(1, entered):
        library = add_member(library, params(number))
    return library


def test_newest_members_are_kept_under_their_numbers():
    library = filled(5)
    assert sorted(library.member.tolist()) == [2, 3, 4]
    assert holds(library, jnp.arange(-1, 6)).tolist() == [False, False, False, True, True, True, False]
    taken = take_members(library, jnp.array([4, 2, 3, 4]))
    assert taken["n"].tolist() == [4, 2, 3, 4]
    assert taken["w"].tolist() == [[4.0, 4.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]


def test_games_are_counted_for_the_member_that_played():
    member = jnp.array([[2, 3, 1], [3, 4, -2]])  # 1 has left the library
    result = jnp.array([[1.0, 0.5, 1.0], [0.0, 1.0, 1.0]])
    counts = jnp.array([[True, True, True], [True, False, True]])
    library = count_games(filled(5), member, result, counts)
    by_member = {
        int(m): (float(w), float(g)) for m, w, g in zip(library.member, library.wins, library.games, strict=True)
    }
    assert by_member == {2: (1.0, 1.0), 3: (0.5, 2.0), 4: (0.0, 0.0)}
    rates = {int(m): float(x) for m, x in zip(library.member, win_rates(library), strict=True)}
    assert rates == pytest.approx({2: 3 / 5, 3: 2.5 / 6, 4: 0.5})
    replaced = add_member(library, params(5))  # member 2 leaves with its games
    assert float(replaced.games.sum()) == 2.0


@pytest.mark.parametrize(
    ("opponents", "weight"),
    [
        ("uniform", lambda x: 1.0),
        ("hard", lambda x: (1.0 - x) ** 3),
        ("variance", lambda x: x * (1.0 - x)),
    ],
)
def test_probabilities_follow_their_formula(opponents, weight):
    library = filled(3, size=5)  # two places are empty
    for member, wins, games in ((0, 30, 30), (1, 5, 20), (2, 0, 6)):
        result = (jnp.arange(games) < wins).astype(jnp.float32)
        library = count_games(library, jnp.full(games, member), result, jnp.ones(games, bool))
    weights = [weight((wins + 2) / (games + 4)) for wins, games in ((30, 30), (5, 20), (0, 6))] + [0.0, 0.0]
    expected = np.array(weights) / sum(weights)
    np.testing.assert_allclose(probabilities(library, opponents, 3.0, ()), expected, rtol=1e-5)


def test_newest_and_mixtures_name_members_and_not_places():
    library = filled(5)  # places hold 3, 4, 2
    assert probabilities(library, "newest", 2.0, ()).tolist() == [0.0, 1.0, 0.0]
    mixed = probabilities(library, "mixture", 2.0, (9.0, 9.0, 1.0, 3.0))  # 0 and 1 have left, 4 has no weight
    assert mixed.tolist() == [0.75, 0.0, 0.25]
    assert probabilities(library, "mixture", 2.0, (1.0,)).tolist() == pytest.approx([1 / 3] * 3)


def test_draws_have_these_probabilities():
    probability = jnp.array([0.1, 0.0, 0.9])
    drawn = np.asarray(draw_members(filled(5), probability, 4000, jax.random.key(0)))
    assert {int(member) for member in drawn} == {2, 3}  # the places hold 3, 4, 2
    assert np.mean(drawn == 2) == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 4000))
