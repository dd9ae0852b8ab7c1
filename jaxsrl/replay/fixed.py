"""Replay of steps that stay the same: a dataset alone, or a share of every sample."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from agents.api import Replay, Sample, Trajectory
from envpool_bridge.errors import UserError
from jaxsrl.replay.client import ReplayClient, UpdateKeys
from jaxsrl.replay.host.buffer import HostBuffer
from jaxsrl.replay.prefetch import PrefetchingSampler
from jaxsrl.replay.state import Buffer

_MOST_JOINED, _LEAST_CALLS = 50, 4
_MOST_BYTES = 64 * 2**20

OTHER_STREAM = np.uint32(0xDA7A5E7)
"""Changes the last word of a draw's key."""


def choose_num_joined(num_samples: int, replay: Replay, shapes: Trajectory) -> int:
    """Returns how many samples a client should join for one compiled call, whose start costs the host as much as many steps.

    The number divides that of an update, so that every call runs the same program. An update has at least 4 calls where it can:
    the thread gathers for the next one while the device computes.

    Args:
        num_samples: Number of samples of an update.
        replay: replay part of the agent.
        shapes: Shapes of the steps.
    """
    steps, rows = shapes.reward.shape
    step_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)) / (steps * rows)
    frames = replay.sequence_length + shapes.is_first.shape[0] - steps
    sample_bytes = step_bytes * frames * replay.config.batch_size * replay.agents_per_window
    most = max(1, min(_MOST_JOINED, num_samples // _LEAST_CALLS, int(_MOST_BYTES / sample_bytes)))
    return max(size for size in range(1, most + 1) if num_samples % size == 0)


class FixedReplayClient:
    """Windows of fixed steps, drawn uniformly; a thread prefetches them. Draws depend on keys alone, so it has no state to save.

    Methods without a description are as in `ReplayClient`.

    Args:
        replay: replay part of the agent.
        shapes: Shapes of the steps (see `sizes.make_fixed_sizes`).
        steps: arrays of these shapes, which may be memory maps; they are not copied.
        num_samples: samples of an update.
        timeout_seconds: see `PrefetchingSampler`.
        num_joined: K, samples that `sample` returns joined; `num_samples` is a multiple of it.

    Attributes:
        num_steps: number of steps of all rows.
        num_stale: 0.
        batch_size: N, windows of a sample.
        num_joined: K.

    Raises:
        UserError: If the sizes are invalid, or no window fits.
    """

    def __init__(
        self,
        replay: Replay,
        shapes: Trajectory,
        steps: Trajectory,
        num_samples: int,
        timeout_seconds: float = 600.0,
        num_joined: int = 1,
    ) -> None:
        buffer = HostBuffer(replay, shapes, steps, num_joined)
        if buffer.num_windows < 1:
            raise UserError(
                f"the dataset has no window of {replay.sequence_length} steps from {replay.window_start} start: record more"
            )
        self.num_steps, self.num_stale = buffer.num_steps, 0
        self.batch_size = buffer.sizes.batch_size
        self._num_samples, self.num_joined = num_samples, num_joined
        self._sampler = PrefetchingSampler(buffer, timeout_seconds)

    def insert(self, batch: Trajectory | None, keys: UpdateKeys) -> int:
        """Requests the samples of an update, and returns their number; the batch is ignored."""
        self.request(keys, self._num_samples)
        return self._num_samples

    def request(self, keys: UpdateKeys, count: int) -> None:
        """Requests the first `count` samples of an update."""
        if self.num_joined == 1:  # The number may differ from update to update.
            words = np.stack([np.asarray(keys[number].draw) for number in range(count)])
        else:
            words = keys.make_draw_keys(count)
        # Experience of the run may be drawn with the same keys.
        words = np.concatenate([words[:, :-1], words[:, -1:] ^ OTHER_STREAM], axis=1)
        self._sampler.request(list(words.reshape(-1, self.num_joined, words.shape[1])))  # pyright: ignore[reportArgumentType]

    def sample(self) -> Sample:
        """Returns the next K samples as one of K * N windows."""
        return self._sampler.get()

    def update_priorities(self, priority: Any) -> None:
        """Does nothing: all windows have the same probability."""

    def end_update(self) -> None:
        self._sampler.end_update()

    def totals(self) -> dict[str, float]:
        """Returns the number of samples, and the seconds spent in draws and gathers."""
        samples = float(self._sampler.num_samples * self.num_joined)
        return {"dataset/busy_seconds": self._sampler.busy_seconds, "dataset/samples": samples}

    def waited_seconds(self) -> float:
        return self._sampler.waited_seconds

    def to_arrays(self) -> Buffer:
        """Raises RuntimeError: the steps are files already."""
        raise RuntimeError("fixed steps are not part of a checkpoint")

    def restore(self, saved: Buffer) -> None:
        """Raises RuntimeError: the steps are files already."""
        raise RuntimeError("fixed steps are not part of a checkpoint")

    def close(self) -> None:
        self._sampler.close()


class MixedReplayClient:
    """Samples of which a share is from fixed steps (Ball et al. 2023, RLPD), and the rest from the experience of the run.

    Fixed windows are drawn uniformly and have the importance weight 1, also where the run's experience has priorities.
    Methods are as in `ReplayClient`. What is inserted, counted, saved and restored is the run's experience alone.

    Args:
        experience: Experience of the run; its samples are smaller by the share.
        fixed: the fixed steps; its samples are the share.
    """

    def __init__(self, experience: ReplayClient, fixed: FixedReplayClient) -> None:
        self._experience, self._fixed = experience, fixed

    @property
    def num_steps(self) -> int:
        return self._experience.num_steps

    @property
    def num_stale(self) -> int:
        return self._experience.num_stale

    def insert(self, batch: Trajectory, keys: UpdateKeys) -> int:
        due = self._experience.insert(batch, keys)
        if due:
            self._fixed.request(keys, due)
        return due

    def sample(self) -> Sample:
        """Returns the next sample: windows of the run, then windows of the fixed steps."""
        own, fixed = self._experience.sample(), self._fixed.sample()
        probability = np.full(len(fixed.probability), 1.0 / float(own.num_windows), np.float32)
        return Sample(
            join_rows([own.trajectory, fixed.trajectory]),
            np.concatenate([own.probability, probability]),  # pyright: ignore[reportArgumentType]
            own.num_windows,
        )

    def update_priorities(self, priority: Any) -> None:
        # The fixed windows are last, and have none.
        self._experience.update_priorities(priority[: len(priority) - self._fixed.batch_size])

    def end_update(self) -> None:
        self._experience.end_update()
        self._fixed.end_update()

    def totals(self) -> dict[str, float]:
        return {**self._experience.totals(), **self._fixed.totals()}

    def waited_seconds(self) -> float:
        return self._experience.waited_seconds() + self._fixed.waited_seconds()

    def to_arrays(self) -> Buffer:
        return self._experience.to_arrays()

    def restore(self, saved: Buffer) -> None:
        self._experience.restore(saved)

    def close(self) -> None:
        try:
            self._fixed.close()
        finally:
            self._experience.close()


def join_rows(parts: Sequence[Trajectory]) -> Trajectory:
    """Returns trajectories of numpy arrays as one, with copies of their rows in order."""
    steps = [dataclasses.replace(part, agent_state=()) for part in parts]
    joined: Trajectory = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *steps)
    states = [part.agent_state for part in parts]
    return dataclasses.replace(joined, agent_state=jax.tree.map(lambda *leaves: np.concatenate(leaves), *states))
