"""Lines with an estimate while episodes are replayed."""

import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from jaxsrl.training.replay_lines import ReplayLines


def test_lines_come_after_ten_seconds_and_then_every_minute():
    written, now = [], 0.0
    reset = EpisodeReset((5, 2, 0), (np.zeros(300), None, np.zeros((100, 2))))
    lines = ReplayLines(reset, written.append, lambda: now)
    for now in (*np.arange(0.0, 75.0), 400.0):
        assert not lines({"env/replayed_steps_total": now})
    assert [line.partition(": ")[2].partition(";")[0] for line in written] == [
        "10 of 400 steps, about 390 s more",
        "70 of 400 steps, about 330 s more",
    ]
