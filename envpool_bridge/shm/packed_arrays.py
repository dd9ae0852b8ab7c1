"""Arrays stored contiguously in shared memory."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from envpool_bridge.shm.layout import ALIGNMENT

NUM_BLOCKS = 2


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of the parameters: its shape and dtype, and its byte offset inside a block."""

    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class ParamsLayout:
    """Layout of flattened parameters: `[version of block 0 | version of block 1 | block 0 | block 1]`.

    Attributes:
        leaves: Leaves in the order of the flattened tree.
        block_bytes: size of a block, a multiple of 64.
    """

    leaves: tuple[Leaf, ...]
    block_bytes: int

    @property
    def total_bytes(self) -> int:
        """Size of the whole memory."""
        return NUM_BLOCKS * (ALIGNMENT + self.block_bytes)


def params_layout(leaves: Sequence[tuple[tuple[int, ...], str]]) -> ParamsLayout:
    """Returns the layout for leaves of these shapes and dtypes."""
    placed: list[Leaf] = []
    offset = 0
    for shape, dtype in leaves:
        placed.append(Leaf(tuple(shape), dtype, offset))
        offset += -(-placed[-1].num_bytes // ALIGNMENT) * ALIGNMENT
    return ParamsLayout(tuple(placed), max(offset, ALIGNMENT))


def view_leaves(layout: ParamsLayout, block: np.ndarray) -> list[np.ndarray]:
    """Returns the leaves as views of a block of bytes."""
    ends = [(leaf, leaf.offset_bytes + leaf.num_bytes) for leaf in layout.leaves]
    return [block[leaf.offset_bytes : end].view(leaf.dtype).reshape(leaf.shape) for leaf, end in ends]
