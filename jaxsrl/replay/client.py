"""Experience that lies elsewhere than on the devices that learn: what a learner needs of it, and the plain case."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from agents.api import Array, Replay, Sample, Trajectory
from jaxsrl.replay.device.sampler import init_selection
from jaxsrl.replay.device.storage import init_storage
from jaxsrl.replay.host.buffer import HostBuffer
from jaxsrl.replay.on_device import StepKeys
from jaxsrl.replay.prefetch import PrefetchingSampler
from jaxsrl.replay.priority_delay import init_pending
from jaxsrl.replay.schedule import init_pace_state, make_pace
from jaxsrl.replay.sizes import make_sizes
from jaxsrl.replay.state import Buffer


class UpdateKeys:
    """Keys of the gradient steps of one update, made when they are asked for; each is for one use. One thread."""

    def __init__(self, split: Callable[[Array, Any], StepKeys], key: Array) -> None:
        """Of `key`, which is consumed; `split` is `on_device.step_keys` of the agent."""
        self._split, self._key = split, key
        self._made: list[StepKeys] = []

    def data(self) -> np.ndarray:
        """Returns the update's key as uint32, for another process that makes the same of it."""
        return np.asarray(jax.random.key_data(self._key))

    def __getitem__(self, number: int) -> StepKeys:
        """Returns those of gradient step `number`, from 0."""
        while len(self._made) <= number:
            self._made.append(self._split(self._key, np.int32(len(self._made))))
        return self._made[number]


class ReplayClient(Protocol):
    """Where a learner's experience is. One thread, the learner's.

    An update is: `insert`, then `sample` and `update_priorities` for each gradient step that is due, and `end_update`.
    """

    @property
    def num_steps(self) -> int:
        """Env steps that are there."""
        ...

    @property
    def num_stale(self) -> int:
        """Priorities that came when their windows could no longer be drawn."""
        ...

    def insert(self, batch: Trajectory, keys: UpdateKeys) -> int:
        """Inserts a trajectory, and has the samples drawn that it makes due; returns how many these are."""
        ...

    def sample(self) -> Sample:
        """Returns the next sample."""
        ...

    def update_priorities(self, priority: Any) -> None:
        """The priorities [N] of the oldest sample that has none yet; they need not be computed yet."""
        ...

    def end_update(self) -> None:
        """Waits until this update's samples are drawn, and the priorities are in that the next update's draws know."""
        ...

    def totals(self) -> dict[str, float]:
        """Since the start, by metric name."""
        ...

    def waited_seconds(self) -> float:
        """That the learner has waited in `sample` and `end_update`, in all."""
        ...

    def saved(self) -> Buffer:
        """Returns all of it, between two updates, in the form that a buffer on a device has; valid until the next `insert`."""
        ...

    def restore(self, saved: Buffer) -> None:
        """Goes on from what `saved` gave, here or elsewhere; before the first update."""
        ...

    def close(self) -> None:
        """Ends what it has begun; idempotent."""
        ...


class LocalReplayClient:
    """A ReplayClient in this process's memory, with a thread that gathers samples ahead of the learner."""

    def __init__(
        self, replay: Replay, shapes: Trajectory, timeout_seconds: float = 600.0, ahead_of_nothing: int = 2
    ) -> None:
        """An empty buffer, all of its memory allocated.

        Args:
            replay: what the agent learns from.
            shapes: of a slot (`jaxsrl.collect.slot_layout.trajectory_shapes`).
            timeout_seconds: of every wait, as of `PrefetchingSampler`.
            ahead_of_nothing: likewise.

        Raises:
            UserError: the buffer cannot be, or there is no memory for it.
        """
        self._buffer = HostBuffer(replay, shapes)
        self._sampler = PrefetchingSampler(self._buffer, timeout_seconds, ahead_of_nothing)
        self._inserting_seconds = 0.0

    @property
    def num_steps(self) -> int:
        """See `ReplayClient`."""
        return self._buffer.num_steps

    @property
    def num_stale(self) -> int:
        """See `ReplayClient`."""
        return self._buffer.num_stale

    def insert(self, batch: Trajectory, keys: UpdateKeys) -> int:
        """See `ReplayClient`; the batch is copied before this returns.

        Raises:
            BadEnvOutputError: it has not the shapes that the buffer was made for.
        """
        start = time.perf_counter()
        self._buffer.insert(batch)
        self._inserting_seconds += time.perf_counter() - start
        due = self._buffer.steps_due()
        if due:
            self._sampler.request([keys[number].draw for number in range(due)])
        return due

    def sample(self) -> Sample:
        """See `ReplayClient`; raises as `PrefetchingSampler.get`."""
        return self._sampler.get()

    def get_many(self, most: int) -> list[Sample]:
        """As `PrefetchingSampler.get_many`."""
        return self._sampler.get_many(most)

    def update_priorities(self, priority: Any) -> None:
        """See `ReplayClient`."""
        self._sampler.update_priorities(priority)

    def end_update(self) -> None:
        """See `ReplayClient`."""
        self._sampler.end_update()

    def totals(self) -> dict[str, float]:
        """Returns samples taken, and seconds that replay worked: inserting, drawing, gathering, taking in priorities."""
        busy = self._inserting_seconds + self._sampler.busy_seconds
        return {"replay/busy_seconds": busy, "replay/samples": float(self._sampler.num_samples)}

    def waited_seconds(self) -> float:
        """See `ReplayClient`."""
        return self._sampler.waited_seconds

    def saved(self) -> Buffer:
        """See `ReplayClient`; its steps are the buffer's own memory."""
        return self._buffer.to_arrays(self._sampler.sent())

    def restore(self, saved: Buffer) -> None:
        """See `ReplayClient`.

        Raises:
            UserError: it is of a buffer with other sizes.
        """
        self._sampler.restore(self._buffer.from_arrays(saved))

    def writable_arrays(self) -> Buffer:
        """Returns an empty buffer's arrays, of which the steps are its own memory: to be written to, and then to be given to `restore`."""
        return jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, np.ndarray) else np.array(leaf), self._buffer.to_arrays()
        )

    def close(self) -> None:
        """Ends the thread that gathers."""
        self._sampler.close()


def buffer_shapes(replay: Replay, shapes: Trajectory) -> Buffer:
    """What `ReplayClient.saved` gives, of `jax.ShapeDtypeStruct` in place of arrays; nothing is allocated.

    Args:
        replay: what the agent learns from.
        shapes: of a slot.

    Raises:
        UserError: the buffer that the agent asks for cannot be.
    """
    sizes = make_sizes(replay, shapes)
    pace = make_pace(replay.config, sizes.rollout_length * sizes.num_rows)

    def empty() -> Buffer:
        return Buffer(init_storage(sizes, shapes), init_selection(sizes), init_pace_state(pace), init_pending(sizes))

    return jax.eval_shape(empty)
