"""Trajectories between the ring and a learner with a pace of its own: the freshest first, each a few times (SRL's priority queue).

Where a plan drops what its learner has no time for, it may keep some of it instead. Full slots are copied and given back at once,
so that environments never wait, and the learner takes what was learned from least, the newest of it first.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import WaitTimeoutError
from envpool_bridge.shm.slots import SlotViews, join_slots
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.collect.collector import Collector
from jaxsrl.learner.mesh import as_trajectory
from jaxsrl.replay.queue.trajectory_queue import QueueConfig, TrajectoryQueue

_NEVER_WAITS = 0.0  # "freshest" always has room


class RecentTrajectories:
    """Takes over what a source collects. Thread-safety: one thread, the learner's.

    Attributes:
        reused: trajectories that were handed out again.
        outdated: those that were left out because the policy that acted in them was too far behind.
    """

    def __init__(self, source: Collector, config: QueueConfig, max_policy_lag: int) -> None:
        """An empty queue.

        Args:
            source: of trajectories; its slots are given back as soon as they are copied.
            config: of the queue, in order "freshest".
            max_policy_lag: updates that the acting policy may be behind when a trajectory is learned from.
        """
        self._source, self._queue, self._max_lag = source, TrajectoryQueue(config), max_policy_lag
        self.reused = self.outdated = 0

    @property
    def dropped(self) -> int:
        """Trajectories that were learned from less often than they might have been: outdated, or driven out by newer ones."""
        return self._queue.counts.dropped + self.outdated

    def take(
        self, num_updates: int, timeout_seconds: float, observe: Callable[[SlotViews], None]
    ) -> list[SlotViews] | None:
        """What to learn from next.

        Args:
            num_updates: version of the learner's parameters.
            timeout_seconds: that a trajectory is waited for where nothing is kept.
            observe: called with every slot that was filled, in order; its memory is the environments' again afterwards.

        Returns:
            One slot in memory of its own, for reading only; None if nothing came in time.
        """
        while (sequence := self._source.acquire(0.0)) is not None:
            self._keep(sequence, observe)
        found = self._freshest(num_updates)
        if found is None and (sequence := self._source.acquire(timeout_seconds)) is not None:
            self._keep(sequence, observe)
            found = self._freshest(num_updates)
        return found

    def _keep(self, sequence: int, observe: Callable[[SlotViews], None]) -> None:
        slots = self._source.slots(sequence)
        observe(join_slots(slots))
        self._queue.put(_joined(slots), _NEVER_WAITS)
        self._source.drop(sequence)

    def _freshest(self, num_updates: int) -> list[SlotViews] | None:
        while True:
            try:
                batch = self._queue.get(_NEVER_WAITS)
            except WaitTimeoutError:
                return None
            if num_updates - int(np.min(batch.trajectory.policy_version)) > self._max_lag:
                self._queue.discard(batch.number)
                self.outdated += 1
                continue
            self.reused += batch.uses > 0
            return [_as_slot(batch.trajectory)]


def _joined(slots: Any) -> Trajectory:
    """Views of a single slot, copies of several."""
    parts = [as_trajectory(slot) for slot in slots]
    states = [slot.agent_state for slot in slots]
    if len(parts) == 1:
        steps, state = parts[0], states[0]
    else:
        steps = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
        state = map_leaves(lambda *leaves: np.concatenate(leaves, axis=1), *states)
    # Before the first step is all that learning needs.
    return dataclasses.replace(steps, agent_state=map_leaves(lambda leaf: leaf[0], state))


def _as_slot(trajectory: Trajectory) -> SlotViews:
    """The inverse of `as_trajectory`; what learning does not read is empty."""
    length = len(trajectory.reward)
    observation: Any = trajectory.observation
    values: dict[str, Any] = {field.name: getattr(trajectory, field.name) for field in dataclasses.fields(trajectory)}
    del values["observation"], values["is_first"]
    values["agent_state"] = map_leaves(lambda leaf: leaf[None], trajectory.agent_state)
    return SlotViews(
        **values,
        observation=map_leaves(lambda frames: frames[-length - 1 :], observation),
        frames=observation,
        is_first=trajectory.is_first[-length - 1 :],  # pyright: ignore[reportArgumentType]
        is_first_frames=trajectory.is_first,  # pyright: ignore[reportArgumentType]
        incarnation=np.empty(0, np.int64),
        stepped_at=np.empty((length, 0)),
        infos={},
    )
