"""Layout of the shared segment, computed from an EnvSpec and the pool's sizes.

The segment is `[header | counters | slot 0 | slot 1 | ...]`. A slot holds all rows of the pool, time-major, with one
64-byte aligned array for each field. The rows of a lane are contiguous at every step, which inference reads. The whole
slot is one contiguous batch, which the learner reads. `docs/reference/ring_protocol.md` has a diagram.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping

import numpy as np

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, SpecTree, frames_in_leaf, num_frames, spec_to_dict
from envpool_bridge.spec.tree import Path, items, path_name

ALIGNMENT = 64  # bytes: a cache line, and what jax needs to alias host memory on CPU
FORMAT_VERSION = 3
HEADER_BYTES = 256


@dataclasses.dataclass(frozen=True)
class PoolShape:
    """Division of rows among workers and lanes, with the numbers of steps and slots.

    A lane is a contiguous span of rows that step together. `workers_per_lane` workers serve a lane, one *part* each.
    Each worker serves `lanes_per_worker` lanes: while one lane waits for actions, the worker steps another.

    Attributes:
        num_workers: number of environment processes.
        lanes_per_worker: number of lanes that a worker alternates between; 2 or more overlap stepping with inference.
        workers_per_lane: number of workers that share a lane; divides `num_workers`.
        rows_per_part: number of environments that one worker steps for one lane.
        rollout_length: number of steps in a slot, T.
        num_slots: number of slots in the ring.
    """

    num_workers: int
    lanes_per_worker: int
    workers_per_lane: int
    rows_per_part: int
    rollout_length: int
    num_slots: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise UserError(f"{field.name} must be at least 1: got {value}")
        if self.num_workers % self.workers_per_lane:
            raise UserError(
                f"workers_per_lane must divide num_workers: got {self.workers_per_lane} and {self.num_workers}"
            )

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the pool."""
        return self.num_workers // self.workers_per_lane * self.lanes_per_worker

    @property
    def num_parts(self) -> int:
        """Number of (lane, worker) pairs."""
        return self.num_lanes * self.workers_per_lane

    @property
    def rows_per_lane(self) -> int:
        """Number of environments that step together."""
        return self.rows_per_part * self.workers_per_lane

    @property
    def num_rows(self) -> int:
        """Number of environments of the pool, B."""
        return self.rows_per_lane * self.num_lanes

    def lane_rows(self, lane: int) -> slice:
        """Returns the rows of a lane."""
        return slice(lane * self.rows_per_lane, (lane + 1) * self.rows_per_lane)

    def part_rows(self, part: int) -> slice:
        """Returns the rows of a part."""
        return slice(part * self.rows_per_part, (part + 1) * self.rows_per_part)

    def parts_of_lane(self, lane: int) -> range:
        """Returns the parts of a lane, in row order."""
        return range(lane * self.workers_per_lane, (lane + 1) * self.workers_per_lane)

    def parts_of_worker(self, worker: int) -> list[int]:
        """Returns the parts that a worker serves, one for each lane."""
        group, place = divmod(worker, self.workers_per_lane)
        first = group * self.lanes_per_worker
        return [lane * self.workers_per_lane + place for lane in range(first, first + self.lanes_per_worker)]

    def lane_of_part(self, part: int) -> int:
        """Returns the lane of a part."""
        return part // self.workers_per_lane

    def worker_of_part(self, part: int) -> int:
        """Returns the worker that serves a part."""
        lane, place = divmod(part, self.workers_per_lane)
        return lane // self.lanes_per_worker * self.workers_per_lane + place


@dataclasses.dataclass(frozen=True)
class Field:
    """One array of a slot: full shape with time and row axes, and its byte offset inside the slot."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int


@dataclasses.dataclass(frozen=True)
class SlotLayout:
    """All that a process needs to read or write the segment.

    Attributes:
        spec: spec of a row.
        shape: division of the rows.
        fields: arrays of a slot; agent extras are named "extras/<name>".
        agent_state: a row's recurrent state, a tree of ArraySpec; () for none.
        slot_bytes: size of one slot, a multiple of 64.
        layout_hash: 32 bytes that differ whenever any of the above differs.
    """

    spec: EnvSpec
    shape: PoolShape
    fields: tuple[Field, ...]
    slot_bytes: int
    layout_hash: bytes
    agent_state: SpecTree = ()

    @property
    def counters_bytes(self) -> int:
        """Size of the counters, one cache line each: 2 global, 2 for each lane, 4 for each part (see `ring.Counters`)."""
        return ALIGNMENT * (2 + 2 * self.shape.num_lanes + 4 * self.shape.num_parts)

    @property
    def slots_offset_bytes(self) -> int:
        """Offset of slot 0."""
        return HEADER_BYTES + self.counters_bytes

    @property
    def total_bytes(self) -> int:
        """Size of the whole segment."""
        return self.slots_offset_bytes + self.slot_bytes * self.shape.num_slots


def make_layout(
    spec: EnvSpec, shape: PoolShape, extras: Mapping[str, ArraySpec], agent_state: SpecTree = ()
) -> SlotLayout:
    """Returns the layout for these sizes.

    Args:
        spec: spec of a row.
        shape: division of the rows.
        extras: arrays that the agent's `act` adds to each step; `[T, B, ...]` each.
        agent_state: a row's recurrent state, a tree of ArraySpec: `[2, B, ...]` a leaf, before the slot's first step
            and after its last.
    """
    steps, rows = shape.rollout_length, shape.num_rows
    wanted = [
        *_leaf_fields("observation", spec.observation, steps + 1, rows),
        ("is_first", (steps + num_frames(spec), rows), "bool"),
        *_leaf_fields("action", spec.action, steps, rows),
        ("reward", (steps, rows), spec.reward_dtype),
        ("terminated", (steps, rows), "bool"),
        ("truncated", (steps, rows), "bool"),
        ("valid", (steps, rows), "bool"),
        ("policy_version", (steps, rows), "int32"),
        ("incarnation", (shape.num_parts,), "int64"),
        ("stepped_at", (steps, shape.num_parts), "float64"),
        *[(f"infos/{name}", (steps, rows), "float32") for name in spec.info_fields],
    ]
    wanted += [(f"extras/{name}", (steps, rows, *extra.shape), extra.dtype) for name, extra in sorted(extras.items())]
    wanted += [
        (field_name("agent_state", path), (2, rows, *leaf.shape), leaf.dtype) for path, leaf in items(agent_state)
    ]
    fields: list[Field] = []
    offset = 0
    for name, field_shape, dtype in wanted:
        fields.append(Field(name, field_shape, dtype, offset))
        size = int(np.prod(field_shape)) * np.dtype(dtype).itemsize
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    description = [spec_to_dict(spec), dataclasses.astuple(shape), [dataclasses.astuple(field) for field in fields]]
    digest = hashlib.sha256(json.dumps(description).encode()).digest()
    return SlotLayout(spec, shape, tuple(fields), offset, digest, agent_state)


def _leaf_fields(name: str, tree: SpecTree, steps: int, rows: int) -> list[tuple[str, tuple[int, ...], str]]:
    """Returns (name, shape, dtype) of each leaf. A leaf of F frames has F - 1 more steps before the first: its history."""
    return [
        (field_name(name, path), (steps + frames_in_leaf(leaf) - 1, rows, *leaf.stored_shape), leaf.dtype)
        for path, leaf in items(tree)
    ]


def field_name(name: str, path: Path) -> str:
    """Returns the name of a leaf's field in a slot."""
    return f"{name}/{path_name(path)}" if path else name
