"""What the learner's process is told of a slot whose steps go to replay on another node: one flat buffer.

All of it but what only learning reads: of the observations the newest frame, of what the agent records nothing.
Where a run begins and where a host is followed it asks for more: the observation that a slot begins with, and all frames that the
next one does.
"""

import dataclasses
import math

import numpy as np

from envpool_bridge.shm.layout import Field, SlotLayout
from envpool_bridge.shm.packed_arrays import params_layout, view_leaves
from envpool_bridge.shm.slots import SlotViews, view_slot


@dataclasses.dataclass(frozen=True)
class _Part:
    """A field of a slot, and which of its first axis are told; None for all."""

    field: Field
    told: tuple[int, ...] | None


class SlotSummaries:
    """Packs summaries of slots of one layout, and reads them. Any thread."""

    def __init__(self, layout: SlotLayout, edges: bool = False) -> None:
        """Of an environment host's slots; with `edges` they tell more, see above."""
        self._layout = layout
        steps = layout.shape.rollout_length
        self._parts = [
            _Part(field, _told(field, steps, edges)) for field in layout.fields if not field.name.startswith("extras/")
        ]
        shapes = [
            ((*field.shape,) if told is None else (len(told), *field.shape[1:]), field.dtype)
            for field, told in ((part.field, part.told) for part in self._parts)
        ]
        self._flat = params_layout(shapes)

    @property
    def num_bytes(self) -> int:
        """Of one summary."""
        return self._flat.block_bytes

    def pack(self, memory: np.ndarray) -> np.ndarray:
        """[num_bytes] uint8, of a slot's memory, [slot_bytes] uint8."""
        block = np.zeros(self._flat.block_bytes, np.uint8)
        for part, target in zip(self._parts, view_leaves(self._flat, block), strict=True):
            array = _array_of(part.field, memory)
            target[...] = array if part.told is None else array[list(part.told)]
        return block

    def view(self, block: np.ndarray) -> SlotViews:
        """The slot as far as it is told, in memory of its own, in the form of a whole one.

        Observations that were not told, and what the agent recorded, are zeros: nothing of a learner that replays elsewhere reads
        them, and memory that is not touched costs none.
        """
        memory = np.zeros(self._layout.slot_bytes, np.uint8)
        for part, told in zip(self._parts, view_leaves(self._flat, block), strict=True):
            array = _array_of(part.field, memory)
            array[slice(None) if part.told is None else list(part.told)] = told
        return view_slot(self._layout, memory.data)


def _told(field: Field, steps: int, edges: bool) -> tuple[int, ...] | None:
    """Of observations ([F-1 + T+1, B, ...]): the last frame; with `edges` the first step's newest one and the last F."""
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
