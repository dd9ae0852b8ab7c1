"""The slots of a segment as numpy arrays, and the parts of them that acting reads."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from envpool_bridge.shm.layout import ALIGNMENT, SlotLayout, field_name
from envpool_bridge.spec.encoding import concatenated
from envpool_bridge.spec.specs import NEXT_LEVEL, EnvSpec, LeafSpec, SpecTree, num_frames
from envpool_bridge.spec.tree import Tree, items, leaves, map_leaves, take, unflatten, write

Made = TypeVar("Made")
_MOST_VIEWS = 10_000  # of a kind that a process makes before it needs them; one takes a kilobyte


@dataclasses.dataclass(frozen=True)
class SlotViews:
    """One slot; shapes as in `agents.api.Trajectory`.

    Attributes:
        incarnation: [num_parts] int64, the start number of the worker that filled a part.
        stepped_at: [T, num_parts] float64, end of a part's step, in seconds of the monotonic clock.
        infos: [T, B] float32 each, by name: the spec's `info_fields`, NaN where the environment reported no value.
        observation: [T+1, B, *stored_shape] a leaf.
        action: [T, B, ...] a leaf.
        frames: `observation` with its history, [F-1 + T+1, B, *stored_shape] for a leaf of F frames. Agents see the
            same history: where an episode started less than F steps ago, its first frame is repeated.
        is_first_frames: [W-1 + T+1, B] bool, W the largest F: `is_first` after a history of False.
        agent_state: [2, B, ...] a leaf: the recurrent state before the first step and after the last.
    """

    observation: Tree
    is_first: np.ndarray
    action: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    policy_version: np.ndarray
    incarnation: np.ndarray
    stepped_at: np.ndarray
    extras: dict[str, np.ndarray]
    infos: dict[str, np.ndarray]
    frames: Tree
    is_first_frames: np.ndarray
    agent_state: Tree = ()


def each_step(
    slots: Sequence[SlotViews], length: int, sharing: int, make: Callable[[SlotViews, int], Made]
) -> Sequence[Made]:
    """Returns what `make(slot, t)` makes for each step of the ring, made now, so that no views are made while stepping.

    In a long ring, where that would take much time and memory, each is made when it is used, which takes some 10 microseconds.

    Args:
        slots: Slots of the ring.
        length: Rollout length, T.
        sharing: Number of such sequences in this process.
        make: Function that makes views of step t of a slot.
    """
    if len(slots) * length * sharing > _MOST_VIEWS:
        return cast("Sequence[Made]", _WhenUsed(slots, length, make))
    return [make(slot, t) for slot in slots for t in range(length)]


class _WhenUsed:
    """Sequence of views that are made when they are used."""

    def __init__(self, slots: Sequence[SlotViews], length: int, make: Callable[[SlotViews, int], Any]) -> None:
        self._slots, self._length, self._make = slots, length, make

    def __len__(self) -> int:
        return len(self._slots) * self._length

    def __getitem__(self, place: int) -> Any:
        sequence, t = divmod(place, self._length)
        return self._make(self._slots[sequence], t)


def view_slots(layout: SlotLayout, buffer: memoryview) -> list[SlotViews]:
    """Returns numpy views of every slot over `buffer`, the whole segment."""
    starts = [layout.slots_offset_bytes + number * layout.slot_bytes for number in range(layout.shape.num_slots)]
    return [view_slot(layout, buffer, start) for start in starts]


def allocate_slots(layout: SlotLayout) -> list[SlotViews]:
    """Allocates slots in the memory of this process, for environments that it steps itself."""
    memory = np.zeros(layout.total_bytes + ALIGNMENT, np.uint8)
    return view_slots(layout, memory.data[-memory.ctypes.data % ALIGNMENT :])


def view_slot(layout: SlotLayout, buffer: memoryview, start: int = 0) -> SlotViews:
    """Returns numpy views of the slot that starts `start` bytes into `buffer`; they are as writable as the buffer."""
    arrays: dict[str, np.ndarray] = {}
    for field in layout.fields:
        # Unlike np.ndarray(shape, dtype, buffer), an array of frombuffer keeps a shared mapping alive.
        flat = np.frombuffer(buffer, field.dtype, math.prod(field.shape), start + field.offset_bytes)
        arrays[field.name] = flat.reshape(field.shape)
    spec, steps = layout.spec, layout.shape.rollout_length + 1
    extras, infos = _take_named(arrays, "extras/"), _take_named(arrays, "infos/")
    frames = _take_tree(arrays, "observation", spec.observation)
    action = _take_tree(arrays, "action", spec.action)
    agent_state = _take_tree(arrays, "agent_state", layout.agent_state)
    is_first = arrays.pop("is_first")
    newest = partial(_last_steps, steps)
    return SlotViews(
        observation=map_leaves(newest, frames),
        is_first=newest(is_first),
        action=action,
        extras=extras,
        infos=infos,
        frames=frames,
        is_first_frames=is_first,
        agent_state=agent_state,
        **arrays,
    )


def _take_named(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): arrays.pop(name) for name in list(arrays) if name.startswith(prefix)}


def _take_tree(arrays: dict[str, np.ndarray], name: str, spec: SpecTree) -> Tree:
    return unflatten(spec, [arrays.pop(field_name(name, path)) for path, _ in items(spec)])


def _last_steps(steps: int, array: np.ndarray) -> np.ndarray:
    return array[array.shape[0] - steps :]


@dataclasses.dataclass(frozen=True, slots=True)
class ActRows:
    """The part of a slot that acting for R rows reads and writes: views at step t.

    Attributes:
        observation: Observation to read: [R, *stored_shape] a leaf, or [F, R, *stored_shape], oldest first, for a leaf of F > 1
            frames.
        is_first: [R] bool, to read; [W, R] if W, the largest F, is more than 1.
        action: [R, ...] a leaf, to write.
        extras: [R, ...] each, to write.
        policy_version: [R] int32, to write.
        state_before: [R, ...] a leaf, to write: the recurrent state before this step; None except at a slot's first
            step.
        state_after: State after this step; None except at a slot's last step.
    """

    observation: Tree
    is_first: np.ndarray
    action: Tree
    extras: Mapping[str, np.ndarray]
    policy_version: np.ndarray
    state_before: Tree | None = None
    state_after: Tree | None = None

    def write(self, action: Tree, extras: Mapping[str, np.ndarray], version: int) -> None:
        """Writes the actions and extras of a policy of this version."""
        write(self.action, action)
        for name, values in extras.items():
            self.extras[name][...] = values
        self.policy_version[...] = version


class SlotAccess:
    """Reader and writer of the part of a slot's frames that acting needs, for one layout. Cheap: it is called for every step."""

    def __init__(self, layout: SlotLayout) -> None:
        self._observation = layout.spec.observation
        self._width = num_frames(layout.spec)
        self._last = layout.shape.rollout_length - 1
        self._remembers = bool(leaves(layout.agent_state))

    def act_rows(self, slot: SlotViews, t: int, rows: slice) -> ActRows:
        """Returns the views that acting for some rows at step `t` reads and writes."""
        if self._width == 1:
            observation, is_first = take(slot.observation, (t, rows)), slot.is_first[t, rows]
        else:
            observation = map_leaves(partial(_window, t, rows), self._observation, slot.frames)
            is_first = slot.is_first_frames[t : t + self._width, rows]
        extras = {name: values[t, rows] for name, values in slot.extras.items()}
        acting = ActRows(observation, is_first, take(slot.action, (t, rows)), extras, slot.policy_version[t, rows])
        if not self._remembers or 0 < t < self._last:
            return acting
        before = take(slot.agent_state, (0, rows)) if t == 0 else None
        after = take(slot.agent_state, (1, rows)) if t == self._last else None
        return dataclasses.replace(acting, state_before=before, state_after=after)

    def carry(self, before: SlotViews, after: SlotViews, columns: slice) -> None:
        """Starts the slot `after` with the end of `before`: the newest observation, its frames and `is_first`."""
        steps = len(before.is_first) - 1
        after.is_first[0, columns] = before.is_first[-1, columns]
        if self._width == 1:
            map_leaves(partial(_copy_newest, columns), before.observation, after.observation)
            return
        for source, target in zip(leaves(before.frames), leaves(after.frames), strict=True):
            width = len(source) - steps
            target[:width, columns] = source[steps:, columns]
            is_first = before.is_first_frames[steps + self._width - width :, columns]
            repeat_first_frames(target[:width, columns], is_first)


def blank_window(spec: EnvSpec, num_rows: int) -> tuple[Tree, np.ndarray]:
    """Returns (observation, is_first) in the form of `ActRows`: zeros that start episodes."""
    width = num_frames(spec)
    is_first = np.ones((num_rows,) if width == 1 else (width, num_rows), bool)
    return map_leaves(partial(_blank, num_rows), spec.observation), is_first


def _blank(num_rows: int, leaf: LeafSpec) -> np.ndarray:
    lead = (num_rows,) if leaf.stored_shape == leaf.shape else (leaf.shape[0], num_rows)
    return np.zeros((*lead, *leaf.stored_shape), leaf.dtype)


def _window(t: int, rows: slice, leaf: LeafSpec, frames: np.ndarray) -> np.ndarray:
    return frames[t, rows] if leaf.stored_shape == leaf.shape else frames[t : t + leaf.shape[0], rows]


def _copy_newest(columns: slice, source: np.ndarray, target: np.ndarray) -> None:
    target[0, columns] = source[-1, columns]


def repeat_first_frames(frames: np.ndarray, is_first: np.ndarray) -> None:
    """Overwrites, in place, frames that precede the newest episode's first with that first frame.

    Args:
        frames: [F, R, ...], oldest first.
        is_first: [F, R] bool, of the same steps.
    """
    width = len(frames)
    for row in np.flatnonzero(is_first[1:].any(0)):
        first = width - 1 - int(np.argmax(is_first[::-1, row]))
        frames[:first, row] = frames[first, row]


def starts_of_envs(is_first: np.ndarray, rows_per_env: int) -> np.ndarray:
    """Returns [T, R] bool: whether the environment of each row starts an episode, not only its agent, which may join late.

    Args:
        is_first: [T, R] bool, R rows of whole environments.
        rows_per_env: agents of an environment. At least one is there when another joins.
    """
    if rows_per_env == 1:
        return is_first
    by_env = is_first.reshape(len(is_first), is_first.shape[1] // rows_per_env, rows_per_env)
    return np.repeat(by_env.all(-1), rows_per_env, axis=1)


_ROW_FIELDS = ("is_first", "reward", "terminated", "truncated", "valid", "policy_version", "stepped_at")
"""Arrays of a slot with the axes [T, rows], or [T, parts]."""


def join_slots(slots: Sequence[SlotViews]) -> SlotViews:
    """Joins slots of several pools into one: rows in order, copied; only the last observation, [1, B, ...]."""
    if len(slots) == 1:
        return slots[0]

    named = {name: np.concatenate([getattr(slot, name) for slot in slots], axis=1) for name in _ROW_FIELDS}
    last = concatenated([take(slot.observation, slice(-1, None)) for slot in slots], axis=1)
    return SlotViews(
        observation=last,
        action=concatenated([slot.action for slot in slots], axis=1),
        incarnation=np.concatenate([slot.incarnation for slot in slots]),
        extras={name: np.concatenate([slot.extras[name] for slot in slots], axis=1) for name in _env_extras(slots[0])},
        infos={name: np.concatenate([slot.infos[name] for slot in slots], axis=1) for name in slots[0].infos},
        frames=last,
        is_first_frames=named["is_first"],
        agent_state=concatenated([slot.agent_state for slot in slots], axis=1),
        **named,
    )


def _env_extras(slot: SlotViews) -> list[str]:
    """Returns the extras from which environments reset, the only ones that joined and copied slots have."""
    return [NEXT_LEVEL] if NEXT_LEVEL in slot.extras else []


def copy_slot(slot: SlotViews) -> SlotViews:
    """Copies the arrays of a slot that `join_slots` needs."""
    copies = {name: getattr(slot, name).copy() for name in (*_ROW_FIELDS, "incarnation")}
    last = map_leaves(lambda array: array[-1:].copy(), slot.observation)
    return SlotViews(
        observation=last,
        action=map_leaves(np.copy, slot.action),
        extras={name: slot.extras[name].copy() for name in _env_extras(slot)},
        infos={name: values.copy() for name, values in slot.infos.items()},
        frames=last,
        is_first_frames=copies["is_first"],
        agent_state=map_leaves(np.copy, slot.agent_state),
        **copies,
    )
