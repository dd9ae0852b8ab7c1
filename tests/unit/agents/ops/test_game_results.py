"""Results of games are those of a loop over their steps, however the steps are cut into trajectories."""

import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.game_results import Steps, init_games, play_on

ENVS, STEPS = 5, 60


def played(seed=0):
    """Steps of some games: the step after an end only resets, failures cut a few, and opponents change now and then."""
    rng = np.random.default_rng(seed)
    ended = rng.random((STEPS, ENVS)) < 0.2
    ended[1:] &= ~ended[:-1]
    valid = np.concatenate([np.ones((1, ENVS), bool), ~ended[:-1]]) & (rng.random((STEPS, ENVS)) > 0.05)
    ended &= valid
    change = np.where(rng.random((STEPS, ENVS)) < 0.1, rng.integers(-1, 3, (STEPS, ENVS)), 0)
    score = rng.integers(-2, 3, (STEPS, ENVS)).astype(np.float32)
    return Steps(score, np.abs(score), np.cumsum(change, axis=0).astype(np.int32) % 4 - 1, valid, ended)


def by_a_loop(steps):
    found = []
    for env in range(ENVS):
        opponents, total = set(), 0.0
        for t in range(STEPS):
            if not steps.valid[t, env]:
                opponents, total = set(), 0.0
                continue
            opponents.add(int(steps.opponent[t, env]))
            total += steps.score[t, env]
            if steps.ended[t, env]:
                if len(opponents) == 1 and min(opponents) >= 0:
                    found.append((t, env, min(opponents), 1.0 if total > 0 else 0.5 if total == 0 else 0.0))
                opponents, total = set(), 0.0
    return sorted(found)


def results(steps, length, env=None, games=None):
    env = np.arange(ENVS) if env is None else env
    games, found = init_games(ENVS) if games is None else games, []
    for start in range(0, STEPS, length):
        part = Steps(*(jnp.asarray(x[start : start + length][:, env]) for x in steps))
        games, ended = play_on(games, jnp.asarray(env), jnp.full(ENVS, start, jnp.int32), part)
        for t, row in np.argwhere(ended.counts):
            found.append((start + t, env[row], int(ended.opponent[t, row]), float(ended.result[t, row])))
    return sorted(found)


@pytest.mark.parametrize("length", [60, 12, 1])
@pytest.mark.parametrize("order", [None, np.array([3, 0, 4, 1, 2])])
def test_results_are_those_of_a_loop(length, order):
    steps = played()
    expected = by_a_loop(steps)
    assert len(expected) > 15
    assert len({result for *_, result in expected}) == 3
    assert results(steps, length, order) == expected


def test_games_that_differ_by_rounding_are_draws():
    score = np.zeros((7, 4), np.float32)
    score[:6, 0] = score[:6, 1] = 0.1, 0.1, 0.1, -0.1, -0.1, -0.1  # the float32 sum is 7e-9
    score[6] = 0.0, 1e-3, -1e-9, 6e-8
    magnitude = np.abs(score)
    magnitude[6, 3] = 3.0  # the score is what rounding left of larger rewards
    opponent, valid = np.zeros((7, 4), np.int32), np.ones((7, 4), bool)
    steps = Steps(*map(jnp.asarray, (score, magnitude, opponent, valid, np.arange(7)[:, None] + opponent == 6)))
    _, ended = play_on(init_games(4), jnp.arange(4), jnp.zeros(4, jnp.int32), steps)
    assert ended.counts[-1].all()
    assert ended.result[-1].tolist() == [0.5, 1.0, 0.0, 0.5]


def test_a_game_with_missing_steps_does_not_count():
    steps = Steps(
        *(jnp.ones((4, 1)), jnp.ones((4, 1)), jnp.zeros((4, 1), jnp.int32), jnp.ones((4, 1), bool)),
        jnp.array([[False], [False], [False], [True]]),
    )
    first = Steps(*(x[:2] for x in steps))
    last = Steps(*(x[2:] for x in steps))
    env, step = jnp.zeros(1, jnp.int32), lambda number: jnp.full(1, number, jnp.int32)
    games, _ = play_on(init_games(1), env, step(0), first)
    assert play_on(games, env, step(2), last)[1].counts.tolist() == [[False], [True]]
    games, ended = play_on(games, env, step(3), last)  # step 2 was dropped
    assert ended.counts.tolist() == [[False], [False]]
    again = Steps(*(x[-1:] for x in last))
    assert play_on(games, env, step(5), again)[1].counts.tolist() == [[True]]  # the next game
