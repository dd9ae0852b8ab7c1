"""Aggregate scores against loops over what they are defined as."""

import itertools

import numpy as np
import pytest

from jaxsrl.plots.aggregate import (
    estimate,
    estimate_improvement,
    iqm,
    mean_of_means,
    median_of_means,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)

SCORES = [np.array([0.1, 0.9, 0.4, 0.4]), np.array([0.0, 2.0, 0.7, 0.8]), np.array([0.3, 0.5])]
OTHER = [np.array([0.4, 0.2]), np.array([0.9, 0.1, 0.8]), np.array([0.5])]


def test_iqm_is_the_mean_of_the_middle_half():
    # 12 runs: a quarter is 3.
    scores = [np.array([9.0, 1.0, 5.0, 7.0, -3.0, 4.0]), np.array([2.0, 30.0, 100.0, 6.0, 3.0, -50.0])]
    middle = sorted(np.concatenate(scores))[3:9]
    assert iqm(scores) == pytest.approx(sum(middle) / 6)


def test_statistics_are_what_they_are_called():
    means = [sum(of_env) / len(of_env) for of_env in SCORES]
    assert mean_of_means(SCORES) == pytest.approx(sum(means) / 3)
    assert median_of_means(SCORES) == pytest.approx(sorted(means)[1])
    every = list(np.concatenate(SCORES))
    assert optimality_gap(SCORES) == pytest.approx(sum(max(0.0, 1.0 - score) for score in every) / len(every))


def test_improvement_counts_ties_half():
    wins = []
    for ours, theirs in zip(SCORES, OTHER, strict=True):
        pairs = list(itertools.product(ours, theirs))
        wins.append(sum(1.0 if x > y else 0.5 if x == y else 0.0 for x, y in pairs) / len(pairs))
    assert probability_of_improvement(SCORES, OTHER) == pytest.approx(np.mean(wins))
    assert probability_of_improvement(OTHER, SCORES) == pytest.approx(1 - np.mean(wins))
    found = estimate_improvement(SCORES, OTHER, resamples=500)
    assert found.value == pytest.approx(np.mean(wins))
    assert found.low < found.value < found.high


def test_intervals_come_from_runs_drawn_within_each_environment():
    # Runs of an environment are alike: however they are drawn, nothing changes. GroupCurve over all of them, something would.
    alike = [np.full(3, 0.2), np.full(4, 0.9)]
    found = estimate(alike, mean_of_means, resamples=100)
    assert (found.low, found.value, found.high) == pytest.approx((0.55, 0.55, 0.55))
    profile = performance_profile(alike, np.array([0.5]), resamples=100)
    np.testing.assert_allclose(np.ravel(profile), 4 / 7)


def test_an_interval_is_that_of_all_resamples():
    scores = [np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0])]
    draws = [
        np.mean([np.mean(first), np.mean(second)])
        for first in itertools.product(scores[0], repeat=3)
        for second in itertools.product(scores[1], repeat=2)
    ]
    found = estimate(scores, mean_of_means, resamples=5000)
    assert found.low == pytest.approx(np.quantile(draws, 0.025), abs=0.17)
    assert found.high == pytest.approx(np.quantile(draws, 0.975), abs=0.17)


def test_a_profile_is_the_share_of_runs_above_each_score():
    thresholds = np.array([-1.0, 0.0, 0.4, 0.85, 2.0])
    every = np.concatenate(SCORES)
    share, low, high = performance_profile(SCORES, thresholds, resamples=200)
    np.testing.assert_allclose(share, [np.mean([score > at for score in every]) for at in thresholds])
    assert ((low <= share) & (share <= high)).all()
    assert low[2] < high[2]


def test_it_agrees_with_rliable():
    rliable = pytest.importorskip("rliable.metrics")
    scores = np.random.default_rng(0).normal(size=(7, 3))
    ours = list(scores.T)
    assert iqm(ours) == pytest.approx(rliable.aggregate_iqm(scores))
    assert median_of_means(ours) == pytest.approx(rliable.aggregate_median(scores))
    assert optimality_gap(ours) == pytest.approx(rliable.aggregate_optimality_gap(scores))
    other = np.random.default_rng(1).normal(size=(5, 3))
    assert probability_of_improvement(ours, list(other.T)) == pytest.approx(
        rliable.probability_of_improvement(scores, other)
    )
