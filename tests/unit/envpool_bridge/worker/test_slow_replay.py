"""A replay after a resume that takes longer than an environment may take to start."""

import dataclasses
import time

import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.layout import PoolShape
from tests.chaos.counting import PATIENT, Counting, make_pool


class SlowReplay(Counting):
    """Takes long for its first steps, and never ends an episode."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.length = 10**9
        return observation, info

    def act_up(self):
        if self.steps <= 12:
            time.sleep(0.25)


def test_a_replay_longer_than_the_start_timeout_is_not_a_hang():
    # A worker that is killed for it starts the replay over and over.
    shape = PoolShape(1, 1, 1, rows_per_part=1, rollout_length=4, num_slots=2)
    options = dataclasses.replace(PATIENT, start_timeout_seconds=2.0)
    with make_pool(shape, SlowReplay, options) as pool:
        pool.start([EpisodeReset((0,), (np.ones(12, np.int32),))])
        deadline = time.monotonic() + 60.0
        while not pool.wait_started(0.2):
            assert time.monotonic() < deadline
        assert pool.supervision.replayed_steps >= 12
        assert pool.views[0].observation[0, 0, 1] == 12
