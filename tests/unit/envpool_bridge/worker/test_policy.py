"""Workers that act themselves, with a policy that knows neither jax nor parameters."""

import mmap
import pickle

import numpy as np

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import ActionReward
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.segment import SharedBytes, reserve
from envpool_bridge.spec.specs import ArraySpec
from envpool_bridge.worker.policy import LocalPolicySpec

# Two workers, two lanes each, of three rows.
SHAPE = PoolShape(num_workers=2, lanes_per_worker=2, workers_per_lane=1, rows_per_part=3, rollout_length=4, num_slots=2)
FIRST_ROW = 100


class ByRowAndStep:
    """Acts for sequences below a number in shared memory; the action tells whether row + step is odd."""

    def __init__(self, worker, parts, allowed):
        self.worker, self.parts, self.allowed = worker, parts, memoryview(allowed).cast("q")

    def may_act(self, sequence):
        return sequence < self.allowed[0]

    def act(self, part, step, rows):
        if not self.may_act(step // SHAPE.rollout_length):
            return False
        rows.action[...] = (np.array(self.parts[part]) + step) % 2
        rows.extras["row"][...] = np.array(self.parts[part])
        rows.policy_version[...] = self.worker
        return True


def make_by_row_and_step(layout, worker, parts, descriptors):
    assert layout.shape == SHAPE
    (descriptor,) = descriptors
    return ByRowAndStep(worker, parts, mmap.mmap(descriptor, 64))


def test_workers_act_only_while_parameters_are_available():
    memory = SharedBytes(reserve(64, "a test"), 64)
    allowed = memory.buffer.cast("q")
    options = PoolOptions(run_seed=0, first_row=FIRST_ROW)
    pool = EnvPool(GymnasiumSource(ActionReward), SHAPE, options, extras={"row": ArraySpec((), "int32")})
    rows, steps = FIRST_ROW + np.arange(SHAPE.num_rows), np.arange(4)[:, None]
    with pool:
        spec = LocalPolicySpec(pickle.dumps(make_by_row_and_step), (memory.descriptor,))
        pool.start([EpisodeReset((0,) * 3, (None,) * 3)] * SHAPE.num_parts, spec)
        for sequence in range(5):
            assert pool.acquire(0.05) is None
            allowed[0] = sequence + 1
            pool.wake_workers()
            assert pool.acquire(60.0) == sequence
            slot = pool.views[sequence % SHAPE.num_slots]
            action = (rows + sequence * 4 + steps) % 2
            np.testing.assert_array_equal(slot.action, action)
            np.testing.assert_array_equal(slot.extras["row"], np.broadcast_to(rows, (4, 12)))
            np.testing.assert_array_equal(slot.policy_version, np.broadcast_to(np.repeat([0, 1], 6), (4, 12)))
            # What was done is what was written: the reward follows the action wherever it counts.
            np.testing.assert_array_equal(slot.reward[slot.valid], np.where(action == 1, 1.0, -1.0)[slot.valid])
            assert 0 < slot.valid.sum() < slot.valid.size
            pool.release(sequence)
        # While they could not act they slept: two workers, four times after their start.
        assert pool.env_wait_seconds > 0.3
    allowed.release()
    memory.close()
