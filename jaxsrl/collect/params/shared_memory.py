"""Parameters in shared memory: one process publishes, actor processes read, and neither waits for the other.

Two blocks take turns, each with the version that it holds; a version is 8 bytes, aligned, alone on its cache line. The
writer takes the older block's version away, writes the block, then puts the new version there. A reader looks at the
version, copies the block and looks again: if it is still the same, nothing was written in between.

Two are enough. At lag 0 and 1 version v + 1 overwrites v - 1, and it is published only after every actor has filled slot v,
the last one that v - 1 may act for. At larger lags the newest acts, and the newest is never the one that is overwritten.
"""

import threading
from collections.abc import Sequence

import numpy as np

from envpool_bridge.shm.layout import ALIGNMENT
from envpool_bridge.shm.packed_arrays import NUM_BLOCKS, ParamsLayout, view_leaves
from envpool_bridge.shm.segment import SharedBytes, reserve

_ATTEMPTS = 100  # a copy is overtaken only by a writer that publishes twice meanwhile


class SharedParams:
    """The two newest published versions. Process-safety: one writer, any readers.

    Attributes:
        layout: of the parameters.
    """

    def __init__(self, layout: ParamsLayout, descriptor: int | None = None) -> None:
        """Reserves new memory, which this object owns, or maps that of `descriptor`, which it owns from now on.

        Raises:
            SegmentTooLargeError: /dev/shm cannot hold it.
            LayoutMismatchError: the descriptor's memory has another size.
        """
        self.layout = layout
        made = reserve(layout.total_bytes, "a shared copy of the parameters") if descriptor is None else descriptor
        self._memory = SharedBytes(made, layout.total_bytes)
        begin = NUM_BLOCKS * ALIGNMENT
        self._words = self._memory.buffer[:begin].cast("q")  # version + 1, or 0 while there is none
        self._places = [index * ALIGNMENT // 8 for index in range(NUM_BLOCKS)]
        self._blocks = [
            np.frombuffer(self._memory.buffer, np.uint8, layout.block_bytes, begin + index * layout.block_bytes)
            for index in range(NUM_BLOCKS)
        ]
        self._fence = threading.Lock()

    @property
    def descriptor(self) -> int:
        """Of the memory, to be handed to readers."""
        return self._memory.descriptor

    def publish(self, version: int, leaves: Sequence[np.ndarray]) -> None:
        """Copies the leaves of `version` in, over the older of the two versions that are there.

        Raises:
            ValueError: versions do not grow, or a leaf has another shape or dtype than the layout.
        """
        held = [self._words[place] - 1 for place in self._places]
        if version <= max(held):
            raise ValueError(f"versions grow: expected one above {max(held)}, got {version}")
        arrays = [np.asarray(leaf) for leaf in leaves]
        expected = [(leaf.shape, leaf.dtype) for leaf in self.layout.leaves]
        got = [(array.shape, array.dtype.name) for array in arrays]
        if got != expected:
            raise ValueError(f"the parameters' shapes changed: expected {expected}, got {got}")
        index = held.index(min(held))
        self._words[self._places[index]] = 0
        # Large copies use stores that may overtake earlier ones, even on x86: the 0 must be seen before any of them.
        self._barrier()
        for target, array in zip(view_leaves(self.layout, self._blocks[index]), arrays, strict=True):
            target[...] = array
        self._barrier()
        self._words[self._places[index]] = version + 1

    def newest(self) -> int:
        """Newest version that is there; -1 if none is."""
        return max([self._words[place] for place in self._places]) - 1

    def acting_version(self, sequence: int, max_policy_lag: int) -> int | None:
        """The version that acts for a slot sequence, as `params.store.ParamsStore` decides it; None if it is not there."""
        oldest = max(0, sequence - max_policy_lag)
        if max_policy_lag <= 1:
            return oldest if any(self._words[place] == oldest + 1 for place in self._places) else None
        newest = self.newest()
        return newest if newest >= oldest else None

    def missing(self, sequence: int, max_policy_lag: int) -> str:
        """Names the missing parameters for this slot sequence; "" if none are missing."""
        if self.acting_version(sequence, max_policy_lag) is not None:
            return ""
        return describe_missing(max(0, sequence - max_policy_lag), max_policy_lag, self.newest())

    def read(self, version: int) -> list[np.ndarray] | None:
        """A copy of the leaves of `version`, whole; None if it is not there, or no longer when the copy was done."""
        for place, block in zip(self._places, self._blocks, strict=True):
            if self._words[place] != version + 1:
                continue
            copied = block.copy()
            self._barrier()
            if self._words[place] == version + 1:
                return view_leaves(self.layout, copied)
        return None

    def read_acting(self, sequence: int, max_policy_lag: int) -> tuple[int, list[np.ndarray]] | None:
        """(version, a copy of its leaves) that act for a slot sequence; None if they are not there.

        Tries again with the newer version when the writer overtakes the copy.
        """
        for _ in range(_ATTEMPTS):
            version = self.acting_version(sequence, max_policy_lag)
            if version is None:
                return None
            leaves = self.read(version)
            if leaves is not None:
                return version, leaves
        return None

    def close(self) -> None:
        """Lets go of the memory; idempotent. It is freed with its last user."""
        self._blocks = []
        self._words.release()
        self._memory.close()

    def _barrier(self) -> None:
        # Taking a lock is a full barrier for the processor, whoever's lock it is (as in envpool_bridge.shm.ring).
        with self._fence:
            pass


def describe_missing(version: int, max_policy_lag: int, newest: int) -> str:
    """Describes parameters of `version`, which are not published; `newest` is -1 before any are."""
    wanted = f"version {version}" if max_policy_lag <= 1 else f"version {version} or newer"
    return f"parameters of {wanted} from the learner (newest published: {newest if newest >= 0 else 'none'})"
