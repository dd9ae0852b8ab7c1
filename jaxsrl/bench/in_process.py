"""Rows stepped by this process into slots of ordinary memory, as the plan "serial" does."""

import contextlib
import time
from collections.abc import Iterator

import numpy as np

from envpool_bridge.envs.protocol import EnvSource, GymnasiumReset, first_rows, step_rows
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import SlotAccess, allocate_slots
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import take, write
from jaxsrl.bench.random_actions import random_actions
from jaxsrl.bench.rivals.vector_envs import Stepper


@contextlib.contextmanager
def in_this_process(source: EnvSource, spec: EnvSpec, shape: PoolShape) -> Iterator[Stepper]:
    """Yields all rows as one lane, with random actions, without inference or waits."""
    layout = make_layout(spec, shape, {})
    slots = allocate_slots(layout)
    access, length, everything = SlotAccess(layout), shape.rollout_length, slice(None)
    drawn = random_actions(spec, np.random.default_rng(0), (97, shape.num_rows))
    actions = [take(drawn, turn) for turn in range(97)]
    rows = source.make_rows(range(shape.num_rows), None, False)
    first = first_rows(slots[0])
    rows.reset(GymnasiumReset(tuple(range(shape.num_rows))), first)
    first.begin_history()
    steps_done = 0

    def step(seconds: float) -> float:
        nonlocal steps_done
        before, start = steps_done, time.perf_counter()
        end = start + seconds
        while time.perf_counter() < end:
            sequence, t = divmod(steps_done, length)
            slot = slots[sequence % len(slots)]
            if t == 0:
                if sequence > 0:
                    access.carry(slots[(sequence - 1) % len(slots)], slot, everything)
                step_rows(slot, slice(0, length)).prepare()
            action = take(slot.action, t)
            write(action, actions[steps_done % 97])
            rows.step(action, step_rows(slot, t))
            if t + 1 == length:
                rows.verify(take(slot.observation, slice(1, None)), slot.reward)
            steps_done += 1
        return (steps_done - before) * shape.num_rows / (time.perf_counter() - start)

    try:
        yield step
    finally:
        rows.close()
