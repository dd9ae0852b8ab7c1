"""Pong's frames are stored once: a quarter of the bytes, and to the byte the stacks that Gymnasium's wrapper shows."""

from functools import partial

import numpy as np
import pytest

from agents.transforms.frame_stacking import stack_frames
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from tests.support.suite_envs import make_atari

pytest.importorskip("ale_py")
STEPS, ROWS = 30, 2
GAME = ("ALE/Pong-v5", {"max_frames": 80})  # so that episodes end within the steps


def recorded(source):
    spec = source.spec()
    layout = make_layout(spec, PoolShape(1, 1, 1, ROWS, STEPS, 1), {})
    (slot,) = allocate_slots(layout)
    rows = source.make_rows(range(ROWS), 5, False)
    first = first_rows(slot)
    rows.reset(EpisodeReset((0,) * ROWS, (None,) * ROWS), first)
    first.begin_history()
    step_rows(slot, slice(0, STEPS)).prepare()
    actions = np.random.default_rng(0).integers(0, 6, (STEPS, ROWS))
    for t in range(STEPS):
        slot.action[t] = actions[t]
        rows.step(slot.action[t], step_rows(slot, t))
    rows.close()
    return layout, slot


def test_pong_single_frames_store_a_quarter_of_the_bytes():
    stacked, reference = recorded(GymnasiumSource(partial(make_atari, *GAME)))
    lazy, slot = recorded(EnvConfig(GAME[0], "atari", kwargs='{"max_frames": 80}').source())
    bytes_of = [found.observation[0].nbytes for found in (slot, reference)]
    assert bytes_of[0] * 4 == bytes_of[1] == ROWS * 4 * 84 * 84
    assert lazy.slot_bytes < 0.3 * stacked.slot_bytes
    assert reference.truncated.sum() >= ROWS
    np.testing.assert_array_equal(slot.truncated, reference.truncated)
    np.testing.assert_array_equal(stack_frames(slot.frames, slot.is_first_frames, 4), reference.observation)
