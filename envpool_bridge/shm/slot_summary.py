"""Summary of a slot whose steps go to a replay buffer on another node: one flat buffer for the learner's process.

A summary has all fields except those that only learning reads: only the newest frame of the observations, and none of
the agent's extras. At the start of a run and after a host is replaced, a summary has more: the slot's first
observation, and all frames of the next slot's first observation.
"""

import dataclasses
import math

import numpy as np

from envpool_bridge.shm.layout import Field, SlotLayout
from envpool_bridge.shm.packed_arrays import params_layout, view_leaves
from envpool_bridge.shm.slots import SlotViews, view_slot


@dataclasses.dataclass(frozen=True)
class _Part:
    """A field of a slot, and the included indices of its first axis; None for all."""

    field: Field
    included: tuple[int, ...] | None


class SlotSummaries:
    """Packs and reads summaries of slots of one layout. Thread-safe.

    Args:
        layout: layout of an environment host's slots.
        edges: includes the additional frames described above.
    """

    def __init__(self, layout: SlotLayout, edges: bool = False) -> None:
        self._layout = layout
        steps = layout.shape.rollout_length
        self._parts = [
            _Part(field, _included(field, steps, edges))
            for field in layout.fields
            if not field.name.startswith("extras/")
        ]
        shapes = [
            ((*field.shape,) if included is None else (len(included), *field.shape[1:]), field.dtype)
            for field, included in ((part.field, part.included) for part in self._parts)
        ]
        self._flat = params_layout(shapes)

    @property
    def num_bytes(self) -> int:
        """Size of one summary in bytes."""
        return self._flat.block_bytes

    def pack(self, memory: np.ndarray) -> np.ndarray:
        """Packs a slot's memory, [slot_bytes] uint8, into a summary, [num_bytes] uint8."""
        block = np.zeros(self._flat.block_bytes, np.uint8)
        for part, target in zip(self._parts, view_leaves(self._flat, block), strict=True):
            array = _array_of(part.field, memory)
            target[...] = array if part.included is None else array[list(part.included)]
        return block

    def view(self, block: np.ndarray) -> SlotViews:
        """Returns the summary in the form of a whole slot, in memory of its own.

        Observations and agent extras that the summary lacks are zeros. A learner with remote replay does not read them,
        and untouched memory is not allocated.
        """
        memory = np.zeros(self._layout.slot_bytes, np.uint8)
        for part, values in zip(self._parts, view_leaves(self._flat, block), strict=True):
            array = _array_of(part.field, memory)
            array[slice(None) if part.included is None else list(part.included)] = values
        return view_slot(self._layout, memory.data)


def _included(field: Field, steps: int, edges: bool) -> tuple[int, ...] | None:
    """Returns the included frames of an observation ([F-1 + T+1, B, ...]), or None for another field.

    These are the last frame, or with `edges` the first step's newest frame and the last F.
    """
    if field.name != "observation" and not field.name.startswith("observation/"):
        return None
    length = field.shape[0]
    if not edges:
        return (length - 1,)
    frames = length - steps
    return tuple(sorted({frames - 1, *range(length - frames, length)}))


def _array_of(field: Field, memory: np.ndarray) -> np.ndarray:
    size = math.prod(field.shape) * np.dtype(field.dtype).itemsize
    return memory[field.offset_bytes : field.offset_bytes + size].view(field.dtype).reshape(field.shape)
