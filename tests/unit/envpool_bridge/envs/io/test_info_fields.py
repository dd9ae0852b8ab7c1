"""Numbers of infos are recorded with their steps; what is no number is refused."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.protocol import GymnasiumReset, first_rows, step_rows
from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from tests.support.scripted_agents import Scripted


class Tells(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    told = ({"score": 3, "won": True}, {"score": np.float64(0.5)}, {"score": np.array(7)}, {"other": "text"})

    def reset(self, *, seed=None, options=None):
        self.number = 0
        return np.zeros(1, np.float32), {"score": "not looked at"}

    def step(self, action):
        self.number += 1
        return np.zeros(1, np.float32), 0.0, False, False, self.told[self.number - 1]


def played(source, steps):
    spec = source.spec()
    count = spec.rows_per_env
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, count, steps, 1), {}))
    rows = source.make_rows(range(count), None, False)
    rows.reset(GymnasiumReset((None,) * count), first_rows(slot))
    step_rows(slot, slice(0, steps)).prepare()
    for t in range(steps):
        rows.step(slot.action[t], step_rows(slot, t))
    return slot


def test_info_fields_are_recorded_where_reported():
    slot = played(GymnasiumSource(Tells, info_fields=("score", "won")), 4)
    np.testing.assert_array_equal(slot.infos["score"][:, 0], np.float32([3, 0.5, 7, np.nan]))
    np.testing.assert_array_equal(slot.infos["won"][:, 0], np.float32([1, np.nan, np.nan, np.nan]))


def test_info_field_that_is_not_a_number_is_rejected():
    with pytest.raises(BadEnvOutputError, match=r"row 0, step 4: bad info\['other'\]: expected a number"):
        played(GymnasiumSource(Tells, info_fields=("other",)), 4)


def test_every_agent_has_its_own():
    slot = played(ParallelSource(Scripted, info_fields=("n",)), 4)
    np.testing.assert_array_equal(
        slot.infos["n"], np.float32([[1, 1, np.nan], [2, 2, np.nan], [3, np.nan, np.nan], [4, np.nan, 4]])
    )
