"""Rows of an environment that is given up: they count as disabled until their worker is replaced."""

import os

from envpool_bridge.options import SupervisorOptions
from envpool_bridge.shm.layout import PoolShape
from tests.chaos.counting import Counting, begin, make_pool


class FailsAtActionOne(Counting):
    """Raises at the action 1; its process ends at the action 2."""

    def step(self, action):
        if action == 1:
            raise ValueError("out of ideas")
        if action == 2:
            os._exit(7)
        return super().step(action)


def test_rows_disabled_are_those_of_the_running_worker():
    options = SupervisorOptions(bad_env_output="drop_episode", max_restarts=1, min_alive_fraction=0.6, keep_spare=False)
    disabled = []

    def step(pool, *actions):
        assert pool.wait_lane(0, 60.0)
        pool.next_action(0)[...] = actions
        pool.post_actions(0)
        assert pool.wait_lane(0, 60.0)
        disabled.append(pool.supervision.rows_disabled)

    with make_pool(PoolShape(1, 1, 1, 3, 64, 1), FailsAtActionOne, options) as pool:
        begin(pool)
        for actions in [(1, 0, 0), (1, 0, 0), (0, 2, 0), (1, 0, 0), (1, 0, 0), (0, 0, 0)]:
            step(pool, *actions)
        pool._supervisor._check_alive_fraction()  # as each second
        pool.check()
    assert disabled == [0, 1, 0, 0, 1, 1]
