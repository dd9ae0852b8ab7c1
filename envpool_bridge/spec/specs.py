"""Specs of one environment row: shapes, stored dtypes and legal ranges. Pure data, no environment needed."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from envpool_bridge.spec.tasks import Task
from envpool_bridge.spec.tree import Tree, is_dict, is_tuple, items, leaves, map_leaves, shown_path, unflatten

Bound = float | tuple[float, ...] | None


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """An array of fixed shape.

    Attributes:
        shape: Shape without time and row axes, as agents see it.
        dtype: name of the dtype stored in a slot. 64-bit sources are stored in 32 bits, jax's default.
        low: lowest legal value: one number for all elements of a stored value, one per element (flattened), or None for
            unbounded.
        high: highest legal value, likewise.
        source_dtype: dtype that the environment itself uses; "" means the same as `dtype`.
        frames: number of newest values that agents see at once, oldest first, along the first axis of `shape`. Each is
            stored once. 1 for values that are not stacked.
    """

    shape: tuple[int, ...]
    dtype: str
    low: Bound = None
    high: Bound = None
    source_dtype: str = ""
    frames: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if self.frames > 1 and self.shape[:1] != (self.frames,):
            raise ValueError(f"{self.frames} frames need a first axis of size {self.frames}: got shape {self.shape}")
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)
        object.__setattr__(self, "source_dtype", np.dtype(self.source_dtype or self.dtype).name)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one frame, which an environment returns and a slot stores at each step."""
        return self.shape if self.frames == 1 else self.shape[1:]

    def bound(self, which: str) -> np.ndarray | None:
        """Returns the bound `which` ("low" or "high") as an array that broadcasts against `stored_shape`; None if unbounded."""
        value: Bound = getattr(self, which)
        if value is None:
            return None
        array = np.asarray(value, dtype=self.dtype)
        return array.reshape(self.stored_shape) if array.ndim else array

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lowest and the highest legal value, float64 that broadcast against `stored_shape`; infinite if unbounded.

        The ends of a dtype count for bools, for integers of 8 or 16 bits, and for 0; others declare nothing.
        """
        kind = np.dtype(self.dtype)
        ends = np.finfo(kind) if kind.kind == "f" else None if kind.kind == "b" else np.iinfo(kind)
        low, high = (0.0, 1.0) if ends is None else (float(ends.min), float(ends.max))
        return self._limit("low", low), self._limit("high", high)

    def _limit(self, which: str, end: float) -> np.ndarray:
        bound, dtype = self.bound(which), np.dtype(self.dtype)
        limit = np.asarray(end if bound is None else bound, np.float64)
        counts = end == 0.0 or (dtype.kind != "f" and dtype.itemsize < 4)
        return limit if counts else np.where(limit == end, np.copysign(np.inf, end), limit)


@dataclasses.dataclass(frozen=True)
class DiscreteSpec:
    """One of `num_values` integers. Stored zero-based as int32; `start` is added before it reaches the environment.

    Attributes:
        num_values: number of values.
        start: smallest value.
        source_dtype: dtype that the environment itself uses.
    """

    num_values: int
    start: int = 0
    source_dtype: str = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a value, a scalar."""
        return ()

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the value that a slot stores at each step."""
        return ()

    @property
    def dtype(self) -> str:
        """Stored dtype."""
        return "int32"


@dataclasses.dataclass(frozen=True)
class MultiDiscreteSpec:
    """An array of integers, each with its own number of values. Stored zero-based as int32.

    Attributes:
        shape: Shape without time and row axes.
        num_values: Number of values of each element, flattened.
        start: smallest value of each element, flattened; added before it reaches the environment.
        source_dtype: dtype that the environment itself uses.
    """

    shape: tuple[int, ...]
    num_values: tuple[int, ...]
    start: tuple[int, ...]
    source_dtype: str = "int64"

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the value that a slot stores at each step."""
        return self.shape

    @property
    def dtype(self) -> str:
        """Stored dtype."""
        return "int32"

    @property
    def starts(self) -> np.ndarray:
        """`start` in the shape of a value, int64."""
        return np.asarray(self.start, np.int64).reshape(self.shape)


LeafSpec = ArraySpec | DiscreteSpec | MultiDiscreteSpec
SpecTree = Tree
"""A LeafSpec, or nested dicts and tuples of them: see `envpool_bridge.spec.tree`."""


@dataclasses.dataclass(frozen=True)
class AgentSpec:
    """Observation and action of one agent of a multi-agent environment, before padding to the shape of all rows.

    Attributes:
        name: name in the environment.
        observation: one leaf, or a tree of them.
        action: One leaf of actions, or a tree of them.
        action_mask: Action mask, as in EnvSpec.
    """

    name: str
    observation: SpecTree
    action: SpecTree
    action_mask: tuple[str, ...] = ()


NEXT_LEVEL = "next_level"
"""Extra of each step: level of an episode that starts after it."""


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """Spec of every row of one kind of environment.

    Attributes:
        env_id: name for messages and reports.
        observation: one leaf, or a tree of them. Discrete values are stored zero-based.
        action: One leaf of actions, or a tree of them.
        action_repeat: steps of the environment, or frames of its emulator, per env step (frames = env_steps * action_repeat).
        reward_dtype: stored dtype of rewards.
        action_mask: keys of the observation's leaf that marks values of a discrete action as legal (1) or illegal (0).
            The leaf is [A] for a Discrete action, [sum of num_values] for a MultiDiscrete one. () if every action is
            always legal.
        agents: agents of a multi-agent environment: row r is agent `r % len(agents)` of environment `r // len(agents)`.
            () where a row is an environment. A row whose agent is absent has `valid=False`.
        critic_only: keys of the observation's leaf that only a value function may see, the global state; () if there is
            none.
        info_fields: numbers of the environment's infos that are recorded with every step, for statistics of episodes.
        tasks: tasks of rows that differ on purpose; () if all rows are alike. `assign_tasks` gives the task of an environment.
        stage: integer that the environments receive with every reset, at first; None for none.
        levels: number of levels. With any, the extra `NEXT_LEVEL` of the step that resets a row is the level of its episode.
        players: number of players who act in turn in one row, each for a reward of its own.
        has_time_limit: whether Gymnasium's TimeLimit ends episodes; None for environments that are not Gymnasium's.
    """

    env_id: str
    observation: SpecTree
    action: SpecTree
    action_repeat: int = 1
    reward_dtype: str = "float32"
    action_mask: tuple[str, ...] = ()
    agents: tuple[AgentSpec, ...] = ()
    critic_only: tuple[str, ...] = ()
    info_fields: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    stage: int | None = None
    levels: int = 0
    players: int = 1
    has_time_limit: bool | None = dataclasses.field(default=None, compare=False)  # no matter to a policy

    @property
    def rows_per_env(self) -> int:
        """Number of rows that step as one environment."""
        return max(1, len(self.agents))


def with_frames(spec: EnvSpec, frames: int) -> EnvSpec:
    """Returns the spec of rows whose agents see the newest `frames` values of every array (not of the action mask)."""
    if frames == 1:
        return spec
    stacked = [
        dataclasses.replace(leaf, shape=(frames, *leaf.shape), frames=frames)
        if isinstance(leaf, ArraySpec) and not (spec.action_mask and path == spec.action_mask)
        else leaf
        for path, leaf in items(spec.observation)
    ]
    return dataclasses.replace(spec, observation=unflatten(spec.observation, stacked))


_Spec = TypeVar("_Spec", EnvSpec, AgentSpec)
_KINDS: dict[str, type] = {"array": ArraySpec, "discrete": DiscreteSpec, "multi_discrete": MultiDiscreteSpec}
_KIND_OF = {kind: name for name, kind in _KINDS.items()}


def zeros_of(spec: SpecTree, lead: tuple[int, ...]) -> Tree:
    """Returns arrays of zeros, [*lead, *stored_shape] for each leaf, in the stored dtypes."""
    return map_leaves(partial(_zeros, lead), spec)


def _zeros(lead: tuple[int, ...], leaf: LeafSpec) -> np.ndarray:
    return np.zeros((*lead, *leaf.stored_shape), leaf.dtype)


def describe_leaves(field: str, spec: SpecTree) -> str:
    """Formats each leaf's name, shape and dtype, and the number of discrete values and the smallest, for messages."""

    def form(leaf: LeafSpec) -> str:
        values = "" if isinstance(leaf, ArraySpec) else f" {leaf.num_values} from {leaf.start}"
        return f"{leaf.shape} {leaf.dtype}{values}"

    return ", ".join(f"{shown_path(field, path)} {form(leaf)}" for path, leaf in items(spec))


def has_floats(spec: SpecTree) -> bool:
    """Returns whether any leaf is an array of floating-point numbers."""
    return any(isinstance(leaf, ArraySpec) and leaf.dtype.startswith("float") for leaf in leaves(spec))


def is_one_leaf(spec: SpecTree) -> bool:
    """Returns whether the spec is a single leaf without structure."""
    return isinstance(spec, LeafSpec)


def spec_to_dict(spec: EnvSpec) -> dict[str, Any]:
    """Converts `spec` to a JSON-ready form; `spec_from_dict` is the inverse."""
    agents, tasks = [_to_json(agent) for agent in spec.agents], [dataclasses.asdict(task) for task in spec.tasks]
    return {**_to_json(spec), "agents": agents, "tasks": tasks}


def spec_from_dict(data: Mapping[str, Any]) -> EnvSpec:
    """Converts the output of `spec_to_dict` back to a spec."""
    agents = [_from_json(AgentSpec, agent) for agent in data.get("agents", ())]
    tasks = [Task(**task) for task in data.get("tasks", ())]
    return _from_json(EnvSpec, {**data, "agents": agents, "tasks": tasks})


def _to_json(spec: EnvSpec | AgentSpec) -> dict[str, Any]:
    values = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    return {**values, "observation": _tree_to_json(spec.observation), "action": _tree_to_json(spec.action)}


def _from_json(kind: type[_Spec], data: Mapping[str, Any]) -> _Spec:
    """Returns a spec from the fields that it has; a file of an earlier version may lack some."""
    values = {field.name: data[field.name] for field in dataclasses.fields(kind) if field.name in data}
    trees = {name: _tree_from_json(values.pop(name)) for name in ("observation", "action")}
    return kind(**_with_tuples(values), **trees)


def _tree_to_json(tree: SpecTree) -> dict[str, Any]:
    if is_dict(tree):
        return {"kind": "dict", "items": {key: _tree_to_json(tree[key]) for key in sorted(tree)}}
    if is_tuple(tree):
        return {"kind": "tuple", "items": [_tree_to_json(child) for child in tree]}
    return {"kind": _KIND_OF[type(tree)], **dataclasses.asdict(tree)}


def _tree_from_json(data: Mapping[str, Any]) -> SpecTree:
    kind = data["kind"]
    if kind == "dict":
        return {key: _tree_from_json(child) for key, child in data["items"].items()}
    if kind == "tuple":
        return tuple(_tree_from_json(child) for child in data["items"])
    return _KINDS[kind](**_with_tuples({name: value for name, value in data.items() if name != "kind"}))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}  # pyright: ignore[reportUnknownArgumentType]


def num_frames(spec: EnvSpec) -> int:
    """Returns the largest number of frames that agents see of any leaf of the observation."""
    return max((frames_in_leaf(leaf) for leaf in leaves(spec.observation)), default=1)


def frames_in_leaf(leaf: LeafSpec) -> int:
    """Returns the number of stacked frames of an observation leaf; 1 for a leaf without frames."""
    return leaf.frames if isinstance(leaf, ArraySpec) else 1
