"""Moments of the running discounted return against a loop that keeps it for each row."""

import jax
import numpy as np
import pytest

from agents.api import Trajectory
from agents.ops.return_moments import init_returns, merge_returns, return_batch

DISCOUNT = 0.9


def trajectory(reward, is_first, ended, valid) -> Trajectory:
    nothing = np.zeros(reward.shape, np.float32)
    return Trajectory(
        nothing, is_first, nothing, reward.astype(np.float32), ended, np.zeros_like(ended), valid, nothing, {}
    )


def run_of_rows(rng, num_steps, num_rows, p_end):
    """(reward, is_first, ended, valid) of rows from the beginning of a run, in the NEXT_STEP pattern; [num_steps + 1, B] first."""
    ended, valid = np.zeros((2, num_steps, num_rows), bool)
    is_first = np.zeros((num_steps + 1, num_rows), bool)
    is_first[0] = True
    for row in range(num_rows):
        for t in range(num_steps):
            valid[t, row] = t == 0 or not ended[t - 1, row]
            ended[t, row] = valid[t, row] and rng.random() < p_end
            is_first[t + 1, row] = not valid[t, row]
    reward = np.where(valid, rng.normal(1.0, 2.0, valid.shape), 0.0)
    return reward, is_first, ended, valid


def returns_row_by_row(reward, ended, valid, discount=DISCOUNT):
    """VecNormalize's loop: every valid step's return, in order."""
    found = np.full(reward.shape, np.nan)
    kept = np.zeros(reward.shape[1])
    for t in range(len(reward)):
        kept = kept * discount + reward[t]
        found[t] = kept
        kept = np.where(ended[t] | ~valid[t], 0.0, kept)
    return found[valid]


def in_batches(case, length, discount=DISCOUNT):
    """The kept moments after the run was cut into batches of `length` steps."""
    reward, is_first, ended, valid = case
    step = jax.jit(lambda kept, batch: merge_returns(kept, return_batch(kept, batch, discount)))
    kept = init_returns()
    for begin in range(0, len(reward), length):
        part = slice(begin, begin + length)
        first = is_first[begin : begin + length + 1]
        kept = step(kept, trajectory(reward[part], first, ended[part], valid[part]))
    return kept


def moments(kept):
    return [
        np.asarray(pair, np.float64).sum(0) for pair in (kept.running.count, kept.running.mean, kept.running.variance)
    ]


def test_return_moments_of_one_batch_match_loop():
    case = run_of_rows(np.random.default_rng(0), 40, 6, p_end=0.1)
    expected = returns_row_by_row(case[0], case[2], case[3])
    np.testing.assert_allclose(
        moments(in_batches(case, 40)), [len(expected), expected.mean(), expected.var()], rtol=1e-4
    )


@pytest.mark.parametrize("length", [1, 5, 20])
def test_a_row_alone_is_carried_exactly_from_batch_to_batch(length):
    case = run_of_rows(np.random.default_rng(1), 60, 1, p_end=0.1)
    expected = returns_row_by_row(case[0], case[2], case[3])
    np.testing.assert_allclose(
        moments(in_batches(case, length)), [len(expected), expected.mean(), expected.var()], rtol=1e-4
    )


@pytest.mark.parametrize(("length", "discount"), [(4, 0.9), (16, 0.99)])
def test_return_variance_does_not_depend_on_batch_length(length, discount):
    case = run_of_rows(np.random.default_rng(2), 640, 64, p_end=0.005)
    expected = returns_row_by_row(case[0], case[2], case[3], discount)
    got = moments(in_batches(case, length, discount))
    assert got[1] == pytest.approx(expected.mean(), rel=0.02)
    assert got[2] == pytest.approx(expected.var(), rel=0.1)


def test_the_worst_case_is_as_documented():
    length, discount = 20, 0.95
    rows = np.where(np.arange(8) % 2, 1.0, 0.0)
    reward = np.broadcast_to(rows, (2000, 8))
    is_first = np.zeros((2001, 8), bool)
    is_first[0] = True
    never = np.zeros((2000, 8), bool)
    kept = in_batches((reward, is_first, never, ~never), length, discount)
    truth = np.var(rows / (1 - discount))
    share = discount**length
    assert float(kept.variance) == pytest.approx(truth * (1 - share) / (1 + share), rel=1e-3)
    assert float(kept.mean) == pytest.approx(np.mean(rows / (1 - discount)), rel=1e-3)


def test_return_carry_is_only_of_continuing_rows():
    case = run_of_rows(np.random.default_rng(4), 10, 6, p_end=0.0)
    case[2][-1, :2], case[3][-1, 2:4] = True, False  # two that end with the batch, two that only reset there
    reward = np.where(case[3], case[0], 0.0)
    kept = in_batches((reward, *case[1:]), 10)
    last = [sum(DISCOUNT ** (9 - t) * reward[t, row] for t in range(10)) for row in (4, 5)]
    assert float(kept.mean) == pytest.approx(np.mean(last), rel=1e-5)
    assert float(kept.variance) == pytest.approx(np.var(last), rel=1e-4)


def test_where_every_row_has_ended_the_older_carry_stays():
    case = run_of_rows(np.random.default_rng(3), 10, 4, p_end=0.0)
    kept = in_batches(case, 10)
    reward, is_first, ended, valid = (array.copy() for array in case)
    ended[-1] = True
    batch = trajectory(reward + 1.0, is_first, ended, valid)
    after = merge_returns(kept, return_batch(kept, batch, DISCOUNT))
    assert float(after.mean) == float(kept.mean) != 0.0
    assert float(after.variance) == float(kept.variance) != 0.0
