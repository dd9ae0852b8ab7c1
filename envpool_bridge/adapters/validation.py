"""Validation of what an environment returns, where it enters: nothing is cast, broadcast or let through silently.

Checks are split by price: the form (type, shape, dtype) of everything at every step, the values (finite, in range) of many
steps at once.
"""

import numbers
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.specs import ArraySpec, DiscreteSpec, EnvSpec

BOOLS = frozenset({bool, np.bool_})
NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})


class ObservationForm:
    """Checks the form of single observations: type, shape, dtype, and the value of a discrete one."""

    def __init__(self, spec: ArraySpec | DiscreteSpec) -> None:
        """For observations of this spec."""
        self.spec = spec

    def problem(self, observation: Any) -> str | None:
        """What is wrong with one observation; None if nothing."""
        spec = self.spec
        if isinstance(spec, DiscreteSpec):
            if type(observation) is bool or not (
                isinstance(observation, numbers.Integral) or _is_integer_scalar(observation)
            ):
                return f"expected an integer, got {describe(observation)}"
            if not spec.start <= int(observation) < spec.start + spec.num_values:
                return f"expected {spec.start} <= value < {spec.start + spec.num_values}, got {observation}"
            return None
        if not isinstance(observation, np.ndarray):
            return f"expected a numpy array of shape {spec.shape} and dtype {spec.source_dtype}, got {describe(observation)}"
        if observation.shape != spec.shape:
            return f"expected shape {spec.shape}, got {observation.shape}"
        if observation.dtype != spec.source_dtype:
            return f"expected dtype {spec.source_dtype}, got {observation.dtype}"
        return None


class ValueCheck:
    """Checks the values of many steps at once: observations finite and in range, rewards finite."""

    def __init__(self, spec: EnvSpec, row_ids: Sequence[int], check_range: bool = True) -> None:
        """For these rows; `check_range=False` accepts values outside the declared bounds."""
        self._env_id = spec.env_id
        self._row_ids = row_ids
        self._low = self._high = None
        self._bounds: dict[str, np.ndarray | None] = {}
        observation = spec.observation
        if isinstance(observation, ArraySpec):  # a discrete value is checked before it is stored
            low, high = _checked_bounds(observation, check_range)
            self._bounds = {"low": low, "high": high}
            self._low, self._high = (
                _for_rows(low, observation, len(row_ids)),
                _for_rows(high, observation, len(row_ids)),
            )
        self._check_finite = self._low is None and np.dtype(observation.dtype).kind == "f"

    def verify(self, observation: np.ndarray, reward: np.ndarray | None, newest_step: int) -> None:
        """Refuses the first bad value.

        Args:
            observation: [N, R, ...] of the steps `newest_step - N + 1` to `newest_step`.
            reward: [N, R], or None.
            newest_step: for the message.

        Raises:
            BadEnvOutputError: names the row, the step and the field.
        """
        found, field = self._bad_observation(observation), "observation"
        if found is None and reward is not None:
            good = np.isfinite(reward)
            if not good.all():
                found, field = _first_bad(good, reward, f"a finite {reward.dtype}"), "reward"
        if found is not None:
            index, row, problem = found
            refuse(self._env_id, self._row_ids[row], newest_step - len(observation) + 1 + index, field, problem)

    def _bad_observation(self, stored: np.ndarray) -> tuple[int, int, str] | None:
        # Rows and elements as one axis, so that numpy's inner loop is long.
        flat = stored.reshape(len(stored), -1)
        if self._check_finite:
            good = np.isfinite(flat)
            if not good.all():
                return _first_bad(good.reshape(stored.shape), stored, "a finite value")
        for bound, compare, side, name in (
            (self._low, np.greater_equal, "least", "low"),
            (self._high, np.less_equal, "most", "high"),
        ):
            if bound is not None:
                good = compare(flat, bound)
                if not good.all():
                    shown = _shown(self._bounds[name])
                    return _first_bad(good.reshape(stored.shape), stored, f"at {side} {shown} (the space's {name})")
        return None


def _for_rows(bound: np.ndarray | None, spec: ArraySpec, num_rows: int) -> np.ndarray | None:
    """A bound as it compares with [N, R * elements]."""
    if bound is None or bound.ndim == 0:
        return bound
    return np.tile(np.broadcast_to(bound, spec.shape).reshape(-1), num_rows)


def _checked_bounds(spec: ArraySpec, check_range: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Bounds to compare with; (None, None) if every value of the dtype is legal, or only finiteness is asked for."""
    low, high = (spec.bound("low"), spec.bound("high")) if check_range else (None, None)
    if low is None and high is None:
        return None, None
    if np.dtype(spec.dtype).kind != "f":
        limits = np.iinfo(spec.dtype)
        return (
            np.asarray(limits.min, spec.dtype) if low is None else low,
            np.asarray(limits.max, spec.dtype) if high is None else high,
        )
    # The largest finite number in place of infinity: then the same comparisons refuse infinity, and NaN as always.
    largest = np.finfo(spec.dtype).max
    low = np.maximum(-largest if low is None else low, -largest)
    high = np.minimum(largest if high is None else high, largest)
    return np.asarray(low, spec.dtype), np.asarray(high, spec.dtype)


def reward_error(reward: Any, dtype: str = "float32") -> str | None:
    """What is wrong with a reward; None if it is a real number that is finite in `dtype`, as which it is stored."""
    if isinstance(reward, bool | np.bool_) or not isinstance(reward, numbers.Real | np.floating | np.integer):
        return f"expected a number, got {describe(reward)}"
    try:
        with np.errstate(over="ignore"):
            finite = bool(np.isfinite(np.dtype(dtype).type(reward)))
    except OverflowError:  # a Python int beyond all floats
        finite = False
    return None if finite else f"expected a finite {dtype}, got {str(reward)[:60]}"


def flag_error(flag: Any) -> str | None:
    """What is wrong with `terminated` or `truncated`; None if it is a bool."""
    return None if type(flag) in BOOLS else f"expected a bool, got {describe(flag)}"


def refuse(env_id: str, row: int, step: int, field: str, problem: str) -> NoReturn:
    """Raises the error for a bad field."""
    raise BadEnvOutputError(
        f"{env_id}, row {row}, step {step}: bad {field}: {problem}. "
        f"Mend the environment, or declare what it really returns in its spaces"
    )


def describe(value: Any) -> str:
    """A short description of a wrong value."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _is_integer_scalar(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"


def _first_bad(good: np.ndarray, stored: np.ndarray, expected: str) -> tuple[int, int, str]:
    """(index of the step, row, what is wrong) of the first value that is not good."""
    index, row, *place = (int(number) for number in np.argwhere(~good)[0])
    at = f" at {place}" if place else ""
    return index, row, f"expected {expected}{at}, got {stored[(index, row, *place)]}"


def _shown(bound: np.ndarray | None) -> str:
    return str(bound) if bound is None or bound.size <= 8 else f"bounds of shape {bound.shape}"
