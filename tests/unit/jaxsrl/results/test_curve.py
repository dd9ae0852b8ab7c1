"""Learning curves at fixed steps, against a loop over episodes."""

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.metrics.record_file import RecordFile
from jaxsrl.results.curve import bin_returns, training_curve


@pytest.mark.parametrize("seed", range(4))
def test_bin_returns_equals_a_loop_over_episodes(seed):
    """Episodes end anywhere; records are written now and then, as are points."""
    rng = np.random.default_rng(seed)
    last = 10_000
    ends = np.sort(rng.integers(1, last, size=300))
    returns = rng.normal(size=300) * 100
    recorded = np.unique(np.append(rng.integers(1, last, size=40), last))
    counts = np.array([(ends <= at).sum() for at in recorded], float)
    sums = np.array([returns[ends <= at].sum() for at in recorded])
    steps, means = bin_returns(recorded.astype(float), counts, sums, points=20)
    expected, seen = {}, 0
    for place in range(500, last + 1, 500):
        written = [at for at in recorded if at <= place]
        known = int((ends <= written[-1]).sum()) if written else 0
        if known > seen:
            expected[place] = sum(returns[seen:known]) / (known - seen)
            seen = known
    assert steps == list(expected)
    np.testing.assert_allclose(means, list(expected.values()), rtol=1e-5)
    assert seen == 300


def test_bin_returns_skips_points_without_an_episode():
    steps, means = bin_returns(np.array([10.0, 90.0, 100.0]), np.array([0.0, 2.0, 2.0]), np.array([0.0, 6.0, 6.0]), 10)
    assert (steps, means) == ([90], [3.0])


def test_training_curve_needs_the_totals(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1, "env_steps": 8, "wall_seconds": 1.0, "episode/return_mean": 2.0}\n')
    records = RecordFile(path)
    records.refresh()
    with pytest.raises(UserError, match="no episode/return_sum"):
        training_curve(records)
