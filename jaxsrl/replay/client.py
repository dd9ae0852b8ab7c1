"""Interface between a learner and replay outside its devices' memory, and the client of a buffer in this process."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np

from agents.api import Array, Replay, ReplayAgent, Sample, Trajectory
from jaxsrl.replay.host.buffer import HostBuffer
from jaxsrl.replay.on_device import StepKeys, init_buffer, step_keys
from jaxsrl.replay.prefetch import PrefetchingSampler
from jaxsrl.replay.schedule import make_pace
from jaxsrl.replay.sizes import make_sizes
from jaxsrl.replay.state import Buffer


class KeyPrograms:
    """Compiled programs that derive the keys of an agent's gradient steps.

    Args:
        agent: agent to train.

    Attributes:
        split: maps (key of the update, number) to the keys of one gradient step.
        split_draws: maps (key of the update, numbers [n]) to the keys of their draws, [n, W] uint32.
    """

    def __init__(self, agent: ReplayAgent) -> None:
        def split_draws(key: Array, numbers: Array) -> Array:
            # A loop: `vmap` changes the numbers of some generators.
            return jax.lax.map(lambda number: step_keys(agent, key, number).draw, numbers)

        self.split: Callable[[Array, Any], StepKeys] = jax.jit(partial(step_keys, agent))
        self.split_draws: Callable[[Array, Any], Array] = jax.jit(split_draws)


class UpdateKeys:
    """Keys of the gradient steps of one update, derived on demand. Each is for one use. Thread-safety: one thread.

    Args:
        programs: Programs of the agent.
        key: key of the update, consumed.
    """

    def __init__(self, programs: KeyPrograms, key: Array) -> None:
        self._programs, self._key = programs, key
        self._made: list[StepKeys] = []

    def data(self) -> np.ndarray:
        """Returns the update's key as uint32, from which another process derives the same keys."""
        return np.asarray(jax.random.key_data(self._key))

    def make_draw_keys(self, count: int) -> np.ndarray:
        """Returns the keys of the draws of the first `count` gradient steps, [count, W] uint32, from one compiled call."""
        return np.asarray(self._programs.split_draws(self._key, np.arange(count, dtype=np.int32)))

    def __getitem__(self, number: int) -> StepKeys:
        """Returns the keys of gradient step `number`, from 0."""
        while len(self._made) <= number:
            self._made.append(self._programs.split(self._key, np.int32(len(self._made))))
        return self._made[number]


class ReplayClient(Protocol):
    """A learner's access to its experience. Thread-safety: one thread, the learner's.

    An update is: `insert`, then `sample` and `update_priorities` for each gradient step that is due, and `end_update`.
    """

    @property
    def num_steps(self) -> int:
        """Number of stored env steps."""
        ...

    @property
    def num_stale(self) -> int:
        """Number of priorities that arrived after their windows were overwritten."""
        ...

    def insert(self, batch: Any, keys: UpdateKeys) -> int:
        """Inserts a trajectory (None into fixed experience), requests the samples that are now due, and returns their number."""
        ...

    def sample(self) -> Sample:
        """Returns the next sample."""
        ...

    def update_priorities(self, priority: Any) -> None:
        """Sends the priorities [N] of the oldest sample without priorities. They need not be computed yet."""
        ...

    def end_update(self) -> None:
        """Waits until this update's samples are drawn and the next update's draws have the priorities that are due."""
        ...

    def totals(self) -> dict[str, float]:
        """Returns totals since the start, by metric name."""
        ...

    def waited_seconds(self) -> float:
        """Returns the seconds that the learner has waited in `sample` and `end_update`."""
        ...

    def to_arrays(self) -> Buffer:
        """Returns all experience in the form of a buffer on a device; valid until the next `insert`. Call between updates."""
        ...

    def restore(self, saved: Buffer) -> None:
        """Restores experience from the result of `to_arrays`, of any client. Call before the first update."""
        ...

    def close(self) -> None:
        """Stops all threads and processes that it started; idempotent."""
        ...


class LocalReplayClient:
    """Replay in this process's memory, with a thread that prefetches samples. All memory is allocated at once.

    Args:
        replay: replay part of the agent.
        shapes: Shapes of a slot (`jaxsrl.collect.slot_layout.trajectory_shapes`).
        timeout_seconds: see `PrefetchingSampler`.
        min_prefetched: see `PrefetchingSampler`.

    Raises:
        UserError: If the sizes are invalid, or memory is insufficient.
    """

    def __init__(
        self, replay: Replay, shapes: Trajectory, timeout_seconds: float = 600.0, min_prefetched: int = 2
    ) -> None:
        self._buffer = HostBuffer(replay, shapes)
        self._sampler = PrefetchingSampler(self._buffer, timeout_seconds, min_prefetched)
        self._inserting_seconds = 0.0

    @property
    def num_steps(self) -> int:
        return self._buffer.num_steps

    @property
    def num_stale(self) -> int:
        return self._buffer.num_stale

    def insert(self, batch: Trajectory, keys: UpdateKeys) -> int:
        """Inserts a copy of the batch; see `ReplayClient`.

        Raises:
            BadEnvOutputError: If its shapes differ from the buffer's.
        """
        start = time.perf_counter()
        self._buffer.insert(batch)
        self._inserting_seconds += time.perf_counter() - start
        due = self._buffer.steps_due()
        if due:
            self._sampler.request([keys[number].draw for number in range(due)])
        return due

    def sample(self) -> Sample:
        return self._sampler.get()

    def get_many(self, most: int) -> list[Sample]:
        """Returns the next samples; see `PrefetchingSampler.get_many`."""
        return self._sampler.get_many(most)

    def update_priorities(self, priority: Any) -> None:
        self._sampler.update_priorities(priority)

    def end_update(self) -> None:
        self._sampler.end_update()

    def totals(self) -> dict[str, float]:
        """Returns the number of samples, and the seconds spent in insertion, draws, gathers and priority updates."""
        busy = self._inserting_seconds + self._sampler.busy_seconds
        return {"replay/busy_seconds": busy, "replay/samples": float(self._sampler.num_samples)}

    def waited_seconds(self) -> float:
        return self._sampler.waited_seconds

    def to_arrays(self) -> Buffer:
        """Returns all experience; its steps are views of the buffer's memory. See `ReplayClient`."""
        return self._buffer.to_arrays(self._sampler.pending_updates())

    def restore(self, saved: Buffer) -> None:
        """Restores experience; see `ReplayClient`.

        Raises:
            UserError: If its sizes differ from the buffer's.
        """
        self._sampler.restore(self._buffer.from_arrays(saved))

    def writable_arrays(self) -> Buffer:
        """Returns an empty buffer's arrays to write to and to pass to `restore`; its steps are views of the buffer's memory."""
        return jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, np.ndarray) else np.array(leaf), self._buffer.to_arrays()
        )

    def close(self) -> None:
        self._sampler.close()


def buffer_shapes(replay: Replay, shapes: Trajectory) -> Buffer:
    """Returns the shapes of `ReplayClient.to_arrays` as `jax.ShapeDtypeStruct`; nothing is allocated.

    Args:
        replay: replay part of the agent.
        shapes: Shapes of a slot.

    Raises:
        UserError: If the sizes are invalid.
    """
    sizes = make_sizes(replay, shapes)
    pace = make_pace(replay.config, sizes.rollout_length * sizes.num_rows)
    return jax.eval_shape(lambda: init_buffer(sizes, pace, shapes))
