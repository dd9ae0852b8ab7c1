"""The exported policy on jax."""

from pathlib import Path

import jax
import jax.export
import numpy as np

from jaxsrl.evaluation.export.runtime.base_policy import BasePolicy


class Policy(BasePolicy):
    """The policy on jax's default device. It compiles once for each number of rows.

    Args:
        sample: whether actions are sampled from the policy's distribution instead of the most likely ones.
        seed: Seed of sampled actions.
    """

    def __init__(self, sample: bool = False, seed: int = 0) -> None:
        super().__init__()
        serialized = Path(__file__).with_name("sampled.bin" if sample else "greedy.bin").read_bytes()
        self._act = jax.jit(jax.export.deserialize(bytearray(serialized)).call)
        count = len(self._arrays)
        self._params = [jax.numpy.asarray(self._arrays.pop(f"params/{index}")) for index in range(count)]
        self._random = np.random.default_rng(seed)

    def compute(self, rows: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
        seed = self._random.integers(1 << 32, dtype=np.uint32)
        return [np.asarray(value) for value in self._act(self._params, seed, *inputs)]
