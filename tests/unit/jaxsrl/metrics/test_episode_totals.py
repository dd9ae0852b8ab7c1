"""Totals of episodes: what the host makes of sums that it fetches now and then."""

import numpy as np
import pytest

from jaxsrl.metrics.episodes import WINDOW, EpisodeTotals, RowGroups


def add(totals, count, return_sum, return_max, length_sum):
    """Adds the episodes of one row, beside a row without any."""
    rows = [(count, 0), (return_sum, 0.0), (return_max, -np.inf), (length_sum, 0)]
    totals.add_rows(*map(np.array, rows))


def test_nothing_is_said_before_an_episode_has_finished():
    totals = EpisodeTotals()
    add(totals, 0, 0.0, -np.inf, 0)
    assert totals.metrics() == {}


def test_means_weigh_every_episode_alike():
    totals = EpisodeTotals()
    add(totals, 1, 10.0, 10.0, 4)
    add(totals, 3, 6.0, 5.0, 8)
    assert totals.metrics() == {
        "episode/return_mean": 4.0, "episode/return_max": 10.0, "episode/length_mean": 3.0, "episode/count": 4.0,
        "episode/return_sum": 16.0,
    }  # fmt: skip


@pytest.mark.parametrize(("newest", "mean"), [(WINDOW - 1, (1.0 + 2.0 * (WINDOW - 1)) / WINDOW), (WINDOW, 2.0)])
def test_episode_totals_forget_beyond_a_hundred_episodes(newest, mean):
    totals = EpisodeTotals()
    add(totals, 1, 1.0, 1.0, 1)
    add(totals, newest, 2.0 * newest, 2.0, newest)
    assert totals.metrics()["episode/return_mean"] == pytest.approx(mean)
    assert totals.num_episodes == totals.metrics()["episode/count"] == newest + 1
    assert totals.metrics()["episode/return_sum"] == 1.0 + 2.0 * newest


def test_totals_continue_from_their_arrays():
    totals, again = EpisodeTotals(), EpisodeTotals()
    add(totals, 60, 60.0, 9.0, 60)
    add(totals, 50, 150.0, 7.0, 60)
    again.restore(totals.to_arrays())
    for each in (totals, again):
        add(each, 60, 0.5, 0.25, 7)
    assert again.metrics() == totals.metrics()
    assert again.metrics()["episode/return_max"] == 7.0


def test_groups_have_means_of_their_own_rows():
    groups = RowGroups(("left", "right", "never"), np.array([0, 1, 0]))
    totals, again = EpisodeTotals(groups), EpisodeTotals(groups)
    counts, returns = np.array([1, 2, 3]), np.array([10.0, -4.0, 2.0])
    totals.add_rows(counts, returns, np.array([10.0, -1.0, 1.0]), np.array([5, 6, 7]))
    metrics = totals.metrics()
    assert metrics["episode/return/left"] == 12.0 / 4
    assert metrics["episode/return/right"] == -2.0
    assert metrics["episode/length/left"] == 12.0 / 4
    assert "episode/return/never" not in metrics
    assert metrics["episode/return_mean"] == 8.0 / 6
    again.restore(totals.to_arrays())
    assert again.metrics() == metrics


def test_no_episode_yet_is_restored_too():
    again = EpisodeTotals()
    again.restore(EpisodeTotals().to_arrays())
    assert again.metrics() == {}
    assert again.num_episodes == 0
