"""What one environment row looks like: shapes, stored dtypes and legal ranges. Pure data, no environment needed."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

Bound = float | tuple[float, ...] | None


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """An array of fixed shape.

    Attributes:
        shape: without time and row axes.
        dtype: name of the dtype stored in a slot (64-bit sources are stored in 32 bits, as jax wants them).
        low: lowest legal value: one number for all elements, one per element (flattened), or None for unbounded.
        high: highest legal value, likewise.
        source_dtype: dtype that the environment itself uses; "" means the same as `dtype`.
    """

    shape: tuple[int, ...]
    dtype: str
    low: Bound = None
    high: Bound = None
    source_dtype: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)
        object.__setattr__(self, "source_dtype", np.dtype(self.source_dtype or self.dtype).name)

    def bound(self, which: str) -> np.ndarray | None:
        """The bound `which` ("low" or "high") as an array that broadcasts against `shape`; None if unbounded."""
        value: Bound = getattr(self, which)
        if value is None:
            return None
        array = np.asarray(value, dtype=self.dtype)
        return array.reshape(self.shape) if array.ndim else array


@dataclasses.dataclass(frozen=True)
class DiscreteSpec:
    """One of `num_values` integers. Stored zero-based as int32; `start` is added on the way to the environment.

    Attributes:
        num_values: how many.
        start: the least of them.
        source_dtype: dtype that the environment itself uses.
    """

    num_values: int
    start: int = 0
    source_dtype: str = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        """A discrete value is a scalar."""
        return ()

    @property
    def dtype(self) -> str:
        """Stored dtype."""
        return "int32"


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What every row of one kind of environment looks like.

    Attributes:
        env_id: name for messages and reports.
        observation: what a row observes. Discrete observations are stored zero-based.
        action: what a row accepts.
        action_repeat: emulator frames per env step (frames = env_steps * action_repeat).
        reward_dtype: stored dtype of rewards.
    """

    env_id: str
    observation: ArraySpec | DiscreteSpec
    action: ArraySpec | DiscreteSpec
    action_repeat: int = 1
    reward_dtype: str = "float32"


def spec_to_dict(spec: EnvSpec) -> dict[str, Any]:
    """A JSON-ready form of `spec`; `spec_from_dict` is its inverse."""

    def leaf(value: ArraySpec | DiscreteSpec) -> dict[str, Any]:
        kind = "array" if isinstance(value, ArraySpec) else "discrete"
        return {"kind": kind, **dataclasses.asdict(value)}

    return {
        "env_id": spec.env_id,
        "observation": leaf(spec.observation),
        "action": leaf(spec.action),
        "action_repeat": spec.action_repeat,
        "reward_dtype": spec.reward_dtype,
    }


def spec_from_dict(data: Mapping[str, Any]) -> EnvSpec:
    """The spec that `spec_to_dict` wrote."""

    def bound(value: Any) -> Bound:
        return tuple(float(item) for item in value) if isinstance(value, list) else value  # pyright: ignore

    def leaf(value: Mapping[str, Any]) -> ArraySpec | DiscreteSpec:
        if value["kind"] == "discrete":
            return DiscreteSpec(value["num_values"], value["start"], value["source_dtype"])
        return ArraySpec(
            tuple(value["shape"]),
            value["dtype"],
            bound(value["low"]),
            bound(value["high"]),
            value["source_dtype"],
        )

    return EnvSpec(
        data["env_id"], leaf(data["observation"]), leaf(data["action"]), data["action_repeat"], data["reward_dtype"]
    )
