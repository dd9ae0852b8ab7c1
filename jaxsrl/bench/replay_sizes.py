"""Sizes and data of the replay benchmark."""

import dataclasses

import numpy as np

from agents.api import Replay, ReplayConfig, Trajectory


@dataclasses.dataclass(frozen=True)
class BenchSizes:
    """Sizes of one comparison.

    Attributes:
        shape: Shape of a stored observation.
        dtype: Data type of an observation.
        frames: F, observations that an agent sees at once.
        batch_size: N, windows of a draw, of one step each.
        capacity: stored env steps.
        num_rows: B.
        rollout_length: T, steps of an insertion.
    """

    shape: tuple[int, ...]
    dtype: str
    frames: int
    batch_size: int
    capacity: int
    num_rows: int = 16
    rollout_length: int = 16

    @property
    def ring_steps(self) -> int:
        """C, stored steps of each row."""
        return self.capacity // self.num_rows

    @property
    def sequence_length(self) -> int:
        """Observations of a window: a stack of frames, and the next one."""
        return self.frames + 1

    @property
    def env_steps(self) -> int:
        """Env steps of an insertion."""
        return self.rollout_length * self.num_rows

    @property
    def step_bytes(self) -> int:
        """Size of the arrays of one env step."""
        slot = self.slot()
        leaves = [slot.action, slot.reward, slot.terminated, slot.truncated, slot.valid, slot.policy_version]
        observation = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        return observation + slot.is_first.itemsize + sum(leaf.itemsize for leaf in leaves)

    def replay(self, priority_exponent: float) -> Replay:
        """Returns the replay part of an agent with these sizes."""
        config = ReplayConfig(self.capacity, self.batch_size, priority_exponent=priority_exponent)
        return Replay(config, sequence_length=1)

    def slot(self) -> Trajectory:
        """Returns a trajectory of random numpy arrays with the frames before its first step; episodes last 100 steps."""
        rng = np.random.default_rng(0)
        steps, rows = self.rollout_length, self.num_rows
        size = (steps + self.frames, rows, *self.shape)
        whole = np.dtype(self.dtype).kind in "iu"
        observation = rng.integers(0, 256, size) if whole else rng.normal(size=size)
        ended = rng.random((steps, rows)) < 0.01
        marks = {"terminated": ended, "truncated": np.zeros_like(ended), "valid": ~ended}
        arrays = {
            **marks,
            "observation": observation.astype(self.dtype),
            "is_first": rng.random((steps + self.frames, rows)) < 0.01,
            "action": rng.integers(0, 6, (steps, rows)).astype(np.int32),
            "reward": rng.normal(size=(steps, rows)).astype(np.float32),
            "policy_version": np.zeros((steps, rows), np.int32),
        }
        return Trajectory(**arrays, extras={})  # pyright: ignore[reportArgumentType]


ATARI = BenchSizes((84, 84), "uint8", frames=4, batch_size=32, capacity=16_384)
VECTOR = BenchSizes((17,), "float32", frames=1, batch_size=256, capacity=65_536)
