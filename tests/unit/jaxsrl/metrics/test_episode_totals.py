"""Totals of episodes: what the host makes of sums that it fetches now and then."""

import numpy as np
import pytest

from jaxsrl.metrics.episodes import WINDOW, EpisodeTotals


def test_nothing_is_said_before_an_episode_has_finished():
    totals = EpisodeTotals()
    totals.add_totals(0, 0.0, -np.inf, 0)
    assert totals.metrics() == {}


def test_means_weigh_every_episode_alike():
    totals = EpisodeTotals()
    totals.add_totals(1, 10.0, 10.0, 4)
    totals.add_totals(3, 6.0, 5.0, 8)
    assert totals.metrics() == {
        "episode/return_mean": 4.0, "episode/return_max": 10.0, "episode/length_mean": 3.0, "episode/count": 4.0,
        "episode/return_sum": 16.0,
    }  # fmt: skip


@pytest.mark.parametrize(("newest", "mean"), [(WINDOW - 1, (1.0 + 2.0 * (WINDOW - 1)) / WINDOW), (WINDOW, 2.0)])
def test_episode_totals_forget_beyond_a_hundred_episodes(newest, mean):
    totals = EpisodeTotals()
    totals.add_totals(1, 1.0, 1.0, 1)
    totals.add_totals(newest, 2.0 * newest, 2.0, newest)
    assert totals.metrics()["episode/return_mean"] == pytest.approx(mean)
    assert totals.num_episodes == totals.metrics()["episode/count"] == newest + 1
    assert totals.metrics()["episode/return_sum"] == 1.0 + 2.0 * newest


def test_totals_continue_from_their_arrays():
    totals, again = EpisodeTotals(), EpisodeTotals()
    totals.add_totals(60, 60.0, 9.0, 60)
    totals.add_totals(50, 150.0, 7.0, 60)
    again.restore(totals.to_arrays())
    for each in (totals, again):
        each.add_totals(60, 0.5, 0.25, 7)
    assert again.metrics() == totals.metrics()
    assert again.metrics()["episode/return_max"] == 7.0


def test_no_episode_yet_is_restored_too():
    again = EpisodeTotals()
    again.restore(EpisodeTotals().to_arrays())
    assert again.metrics() == {}
    assert again.num_episodes == 0
