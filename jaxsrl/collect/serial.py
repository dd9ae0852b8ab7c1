"""Collector that steps and acts in this process, one row after another. Reference for all other collectors."""

import time
from collections.abc import Callable, Mapping
from typing import cast

import jax
import numpy as np

from agents.api import Array, Params
from envpool_bridge.envs.io.output_rules import REPAIRS
from envpool_bridge.envs.protocol import EpisodeReset, StagedRows, first_rows, step_rows
from envpool_bridge.shm.slots import SlotAccess, SlotViews, allocate_slots
from envpool_bridge.spec.specs import NEXT_LEVEL
from envpool_bridge.spec.tree import Tree, map_leaves, take
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.inference.act import act_in_slot, make_act, row_keys, wrap_step
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.collect.stage_queue import StageQueue
from jaxsrl.machine.devices import Device, on_device


class SerialCollector:
    """All rows as one lane, stepped in this process when the learner asks for the next slot.

    Args:
        config: arguments of every collector.
        device: device that acts.
    """

    def __init__(self, config: CollectorConfig, device: Device) -> None:
        shape, agent = config.plan.shape, config.agent
        layout = agent_layout(config.spec, shape, agent)
        self._slots = allocate_slots(layout)
        self._access = SlotAccess(layout)
        self._rows = config.env_source.make_rows(range(shape.num_rows), config.seed, False)
        self._shape, self._agent = shape, agent
        self._next = config.first_sequence
        self._first = True
        self._act = make_act(agent, platform=device.platform)
        with jax.default_device(device):
            saved = agent.initial_agent_state(shape.num_rows) if config.agent_state is None else config.agent_state
        self._agent_state = jax.device_put(saved, device)
        self._store = ParamsStore(config.plan.max_policy_lag)
        self._device = device
        self._keys = row_keys(jax.device_put(config.act_key, device), range(shape.num_rows))
        self._stages: StageQueue | None = None
        self._stage = config.spec.stage
        if config.spec.levels:
            cast("StagedRows", self._rows).read_stage = lambda row: self._next_level(row)
        elif config.spec.stage is not None:
            self._stages = StageQueue(config.stages or (config.spec.stage,))
            self._stage = self._stages.stages[0]
            cast("StagedRows", self._rows).read_stage = lambda row: self._stage
        self._steps = self._t = 0
        self._acting_seconds = self._stepping_seconds = 0.0
        self._repaired_before = REPAIRS.total

    def publish(self, version: int, params: Params) -> None:
        """Publishes parameters for the next slots."""
        self._store.publish(version, on_device(params, self._device))

    def start(self, reset: EpisodeReset) -> None:
        """Resets the environments."""
        slot = self._slot(self._next)
        first = first_rows(slot)
        self._rows.reset(reset, first)
        first.begin_history()

    def acquire(self, timeout_seconds: float) -> int | None:
        """Collects the next slot; returns None if its parameters are not published yet."""
        acting = self._store.acting(self._next, 0.0)
        if acting is None:
            return None
        slot = self._slot(self._next)
        if not self._first:
            self._access.carry(self._slot(self._next - 1), slot, slice(None))
        self._first = False
        if self._stages is not None:
            self._stage = self._stages.take()
        whole = slice(0, self._shape.rollout_length)
        step_rows(slot, whole).prepare()
        for t in range(self._shape.rollout_length):
            self._step(slot, t, self._keys, *acting)
        self._rows.verify(take(slot.observation, slice(1, None)), slot.reward)
        self._next += 1
        return self._next - 1

    def slots(self, sequence: int) -> list[SlotViews]:
        """Returns the only slot of a sequence."""
        return [self._slot(sequence)]

    def release(self, sequence: int) -> None:
        """Does nothing: the next `acquire` overwrites an older slot."""

    def set_stage(self, stage: int) -> None:
        """Sets the stage of resets in later slots, as many as in other plans (`stage_delay`)."""
        if self._stages is not None:
            self._stages.later = stage

    def drop(self, sequence: int) -> None:
        """Raises: a slot is collected only when the learner asks for it."""
        raise RuntimeError("the serial collector never has a surplus slot")

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        """Returns a copy of the first slot's first observation."""
        return map_leaves(lambda array: array[0].copy(), self._slot(self._next).observation)

    def totals(self) -> Mapping[str, float]:
        """Returns counts and busy seconds; a single thread does not wait."""
        return {
            "env/busy_seconds": self._stepping_seconds,
            "env/repaired_outputs_total": REPAIRS.total - self._repaired_before,
            "inference/busy_seconds": self._acting_seconds,
            "inference/calls": self._steps,
            "inference/rows": self._steps * self._shape.num_rows,
        }

    def waits(self) -> list[str]:
        """Describes missing parameters; a single thread waits for nothing else."""
        missing = self._store.missing(self._next)
        return [f"the environments wait for {missing}"] if missing else []

    def close(self) -> None:
        """Closes the environments."""
        self._rows.close()

    def _slot(self, sequence: int) -> SlotViews:
        return self._slots[sequence % self._shape.num_slots]

    def _next_level(self, row: int) -> int:
        return int(self._slot(self._next).extras[NEXT_LEVEL][self._t, row])

    def _step(self, slot: SlotViews, t: int, keys: Array, version: int, params: Params) -> None:
        step = wrap_step(self._next * self._shape.rollout_length + t)
        steps = np.full(self._shape.num_rows, step, np.uint32)
        start, self._t = time.perf_counter(), t
        rows = self._access.act_rows(slot, t, slice(None))
        self._agent_state = act_in_slot(self._act, params, rows, self._agent_state, keys, steps, version)
        acted = time.perf_counter()
        self._rows.step(rows.action, step_rows(slot, t))
        self._acting_seconds += acted - start
        self._stepping_seconds += time.perf_counter() - acted
        slot.stepped_at[t] = time.monotonic()
        self._steps += 1
