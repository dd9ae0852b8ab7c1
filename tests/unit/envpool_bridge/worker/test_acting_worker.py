"""Workers that act themselves, killed: their successors act and step on from where they were."""

import pickle
import time

import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.worker.policy import LocalPolicySpec
from tests.chaos.counting import check, copy, kill, make_pool

SHAPE = PoolShape(num_workers=2, lanes_per_worker=2, workers_per_lane=1, rows_per_part=2, rollout_length=6, num_slots=2)


class ByRowAndStep:
    """Acts whenever it is asked."""

    def __init__(self, parts):
        self.parts = parts

    def may_act(self, sequence):
        return True

    def act(self, part, step, rows):
        rows.action[...] = (np.array(self.parts[part]) + step) % 5
        rows.policy_version[...] = step
        return True


def make_by_row_and_step(layout, worker, parts, descriptors):
    return ByRowAndStep(parts)


def test_a_worker_that_acts_itself_is_replaced_like_any_other(caplog):
    resets = [EpisodeReset((0,) * 2, (None,) * 2)] * SHAPE.num_parts
    slots, deadline = [], time.monotonic() + 60.0
    with make_pool(SHAPE) as pool:
        pool.start(resets, LocalPolicySpec(pickle.dumps(make_by_row_and_step)))
        for sequence in range(8):
            while pool.acquire(0.1) is None:
                assert time.monotonic() < deadline
            slots.append(copy(pool.views[sequence % SHAPE.num_slots]))
            if sequence in {2, 4}:
                kill(pool, sequence % 3 % 2)
            pool.release(sequence)
        totals = pool.supervision
    check(slots)
    assert totals.restarts == 2
    assert totals.episodes_cut > 0
    rows, steps = np.arange(8), np.arange(6)[:, None]
    for sequence, slot in enumerate(slots):
        np.testing.assert_array_equal(slot["action"], (rows + sequence * 6 + steps) % 5)
