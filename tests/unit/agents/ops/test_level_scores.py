"""Prioritized level replay: scores, ranks, staleness and draws, against the paper's algorithm in numpy loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.level_scores import (
    EpisodeSteps,
    LevelScores,
    add_episodes,
    draw_levels,
    init_episodes,
    init_scores,
    probabilities,
    score_episodes,
)


def results(score, newest, episodes):
    return LevelScores(jnp.asarray(score, jnp.float32), jnp.asarray(newest, jnp.int32), jnp.int32(episodes))


def expected_probabilities(score, newest, episodes, temperature, staleness, replay_share):
    """Equations 2 to 4 of the paper, level by level."""
    seen = [level for level, number in enumerate(newest) if number]
    unseen = [level for level, number in enumerate(newest) if not number]
    result = np.zeros(len(score))
    share = len(seen) / len(score) if replay_share is None or not seen or not unseen else replay_share
    for level in unseen:
        result[level] = (1.0 - share) / len(unseen)
    by_rank = sorted(seen, key=lambda level: -score[level])
    weight = {level: (1.0 / (1 + by_rank.index(level))) ** (1.0 / temperature) for level in seen}
    age = {level: episodes - newest[level] for level in seen}
    for level in seen:
        by_score = weight[level] / sum(weight.values())
        by_age = age[level] / sum(age.values()) if sum(age.values()) else by_score
        result[level] = share * ((1.0 - staleness) * by_score + staleness * by_age)
    return result


def test_probabilities_of_three_levels_by_hand():
    # Ranks 2, 1, 3 and weights 1/2, 1, 1/3; ages 0, 3, 1.
    actual = probabilities(results([0.5, 2.0, 0.1], [5, 2, 4], 5), temperature=1.0, staleness=0.2, replay_share=None)
    expected = [0.8 * 3 / 11, 0.8 * 6 / 11 + 0.2 * 3 / 4, 0.8 * 2 / 11 + 0.2 / 4]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("replay_share", [None, 0.5], ids=["share of seen", "fixed"])
@pytest.mark.parametrize("temperature", [0.1, 1.0, np.inf])
def test_probabilities_equal_the_papers(temperature, replay_share):
    rng = np.random.default_rng(0)
    for num_seen in (0, 1, 4, 9, 10):
        score, newest = rng.uniform(0.0, 3.0, 10), np.zeros(10, int)
        newest[rng.permutation(10)[:num_seen]] = rng.permutation(30)[:num_seen] + 1
        score[newest == 0] = 0.0
        given = (score, newest, 30 if num_seen else 0)
        actual = probabilities(results(*given), temperature, 0.1, replay_share)
        expected = expected_probabilities(*given, temperature, 0.1, replay_share)
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-7)
        assert float(actual.sum()) == pytest.approx(1.0, abs=1e-5)


def test_draws_have_the_frequencies_of_the_probabilities():
    probability = jnp.array([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    drawn = draw_levels(probability, jax.random.split(jax.random.key(0), 20_000))
    counts = np.bincount(drawn, minlength=6)
    np.testing.assert_allclose(counts / 20_000, probability, atol=0.012)  # more than 3 deviations
    assert counts[[0, 2, 5]].sum() == 0


def test_draw_depends_on_its_own_key_alone():
    probability, keys = jnp.full(7, 1.0 / 7), jax.random.split(jax.random.key(3), 8)
    together = draw_levels(probability, keys)
    assert together.tolist() == [int(draw_levels(probability, keys[row : row + 1])[0]) for row in range(8)]


def looped(advantage, is_first, valid, ended, level, num_levels):
    """Scores of finished episodes, in order of time and row, by plain loops."""
    rows, score, newest, episodes = advantage.shape[1], np.zeros(num_levels), np.zeros(num_levels, int), 0
    seen = [[] for _ in range(rows)]
    for t in range(len(advantage)):
        for row in range(rows):
            if is_first[t, row]:
                seen[row] = []
            if valid[t, row]:
                seen[row].append(abs(advantage[t, row]))
            if valid[t, row] and ended[t, row]:
                episodes += 1
                score[level[t, row]], newest[level[t, row]] = np.mean(seen[row]), episodes
    return score, newest, episodes


def random_steps(rng, length, rows):
    """Steps of episodes of random lengths; a step that only resets follows each."""
    is_first, valid, ended = (np.zeros((length, rows), bool) for _ in range(3))
    level = np.zeros((length, rows), int)
    for row in range(rows):
        starts, now = True, 0
        for t in range(length):
            if t and ended[t - 1, row]:
                starts = True
                level[t, row] = now
                continue
            now = int(rng.integers(5)) if starts else now
            is_first[t, row], valid[t, row], level[t, row], starts = starts, True, now, False
            ended[t, row] = rng.uniform() < 0.3
    return rng.normal(size=(length, rows)).astype(np.float32), is_first, valid, ended, level


@pytest.mark.parametrize("cuts", [(), (4, 8)], ids=["one trajectory", "three"])
def test_scores_are_those_of_the_newest_episodes(cuts):
    advantage, is_first, valid, ended, level = random_steps(np.random.default_rng(1), 12, 3)
    scores, episodes, first = init_scores(5), init_episodes(3), 0
    for end in (*cuts, 12):
        part = slice(first, end)
        steps = EpisodeSteps(*(jnp.asarray(x[part]) for x in (advantage, is_first, valid, ended)))
        episodes, score, scored = jax.jit(score_episodes)(episodes, jnp.arange(3), jnp.full(3, first), steps)
        scores = jax.jit(add_episodes)(scores, jnp.asarray(level[part]), score, scored)
        first = end
    score, newest, count = looped(advantage, is_first, valid, ended, level, 5)
    np.testing.assert_allclose(scores.score, score, rtol=1e-5)
    assert (scores.newest.tolist(), int(scores.episodes)) == (newest.tolist(), count)


def test_episode_with_missing_steps_has_no_score():
    ones, no = jnp.ones((4, 1), bool), jnp.zeros((4, 1), bool)
    ended = jnp.asarray([[False], [True], [False], [True]])
    first = jnp.asarray([[False], [False], [True], [False]])
    steps = EpisodeSteps(jnp.full((4, 1), 2.0), first, ones, ended)
    episodes, _, _ = jax.jit(score_episodes)(init_episodes(1), jnp.arange(1), jnp.array([0]), steps._replace(ended=no))
    _, score, scored = jax.jit(score_episodes)(episodes, jnp.arange(1), jnp.array([9]), steps)
    assert scored[:, 0].tolist() == [False, False, False, True]
    assert float(score[3, 0]) == 2.0
