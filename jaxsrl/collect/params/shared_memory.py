"""Parameters in shared memory: one process publishes, actor processes read, and neither waits for the other.

Two blocks alternate, each with its version. A version is 8 aligned bytes, alone on its cache line. The writer clears the
version of the older block, writes the block, and then stores the new version. A reader loads the version, copies the block and
loads the version again. If it is unchanged, the copy is consistent.

Two blocks suffice. At lag 0 and 1, version v + 1 overwrites v - 1. It is published only after every actor has filled slot v, the
last slot that v - 1 may act for. At larger lags the newest version acts, and it is never the one that is overwritten.
"""

import threading
from collections.abc import Sequence

import numpy as np

from envpool_bridge.shm.layout import ALIGNMENT
from envpool_bridge.shm.packed_arrays import NUM_BLOCKS, ParamsLayout, view_leaves
from envpool_bridge.shm.segment import SharedBytes, reserve

_ATTEMPTS = 100  # only a writer that publishes twice meanwhile overtakes a copy


class SharedParams:
    """The two newest published versions. Process-safety: one writer, any readers.

    Args:
        layout: layout of the parameters.
        descriptor: memory of another process's object, which this object maps and closes; None to reserve memory.

    Raises:
        SegmentTooLargeError: /dev/shm cannot hold it.
        LayoutMismatchError: If the descriptor's memory has another size.
    """

    def __init__(self, layout: ParamsLayout, descriptor: int | None = None) -> None:
        self._layout = layout
        segment = reserve(layout.total_bytes, "a shared copy of the parameters") if descriptor is None else descriptor
        self._memory = SharedBytes(segment, layout.total_bytes)
        start = NUM_BLOCKS * ALIGNMENT
        self._words = self._memory.buffer[:start].cast("q")  # version + 1, or 0 for an empty block
        self._places = [index * ALIGNMENT // 8 for index in range(NUM_BLOCKS)]
        self._blocks = [
            np.frombuffer(self._memory.buffer, np.uint8, layout.block_bytes, start + index * layout.block_bytes)
            for index in range(NUM_BLOCKS)
        ]
        self._fence = threading.Lock()

    @property
    def descriptor(self) -> int:
        """Descriptor of the memory, for readers."""
        return self._memory.descriptor

    def publish(self, version: int, leaves: Sequence[np.ndarray]) -> None:
        """Copies the leaves of `version` over the older of the two stored versions.

        Raises:
            ValueError: If the version is not above the stored ones, or a leaf has another shape or dtype than the layout.
        """
        stored = [self._words[place] - 1 for place in self._places]
        if version <= max(stored):
            raise ValueError(f"versions must grow: expected one above {max(stored)}, got {version}")
        arrays = [np.asarray(leaf) for leaf in leaves]
        expected = [(leaf.shape, leaf.dtype) for leaf in self._layout.leaves]
        got = [(array.shape, array.dtype.name) for array in arrays]
        if got != expected:
            raise ValueError(f"the parameters' shapes changed: expected {expected}, got {got}")
        index = stored.index(min(stored))
        self._words[self._places[index]] = 0
        # Large copies use stores that may overtake earlier ones, even on x86: the 0 must be seen before any of them.
        self._barrier()
        for target, array in zip(view_leaves(self._layout, self._blocks[index]), arrays, strict=True):
            target[...] = array
        self._barrier()
        self._words[self._places[index]] = version + 1

    def newest(self) -> int:
        """Returns the newest stored version; -1 without any."""
        return max([self._words[place] for place in self._places]) - 1

    def acting_version(self, sequence: int, max_policy_lag: int) -> int | None:
        """Returns the version that acts for a slot sequence (rule: `params.store.ParamsStore`); None if it is not stored."""
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
        """Returns a consistent copy of the leaves of `version`; None if it is not stored or was overwritten meanwhile."""
        for place, block in zip(self._places, self._blocks, strict=True):
            if self._words[place] != version + 1:
                continue
            copied = block.copy()
            self._barrier()
            if self._words[place] == version + 1:
                return view_leaves(self._layout, copied)
        return None

    def read_acting(self, sequence: int, max_policy_lag: int) -> tuple[int, list[np.ndarray]] | None:
        """Returns the version that acts for a slot sequence and a copy of its leaves; None if they are not stored.

        Retries with the newer version when the writer overtakes the copy.
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
        """Closes the memory; idempotent. The kernel frees it after its last user."""
        self._blocks = []
        self._words.release()
        self._memory.close()

    def _barrier(self) -> None:
        # Taking any lock is a full memory barrier (as in envpool_bridge.shm.ring).
        with self._fence:
            pass


def describe_missing(version: int, max_policy_lag: int, newest: int) -> str:
    """Describes parameters of `version`, which are not published; `newest` is -1 before any are."""
    versions = f"version {version}" if max_policy_lag <= 1 else f"version {version} or newer"
    return f"parameters of {versions} from the learner (newest published: {newest if newest >= 0 else 'none'})"
