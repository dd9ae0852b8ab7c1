"""Validation of what an environment returns, where it enters: nothing is cast, broadcast or let through silently.

Checks are split by price: the type, shape and dtype of each observation one by one, finiteness and range once for all rows.
"""

import numbers
from typing import Any, NoReturn

import numpy as np

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.specs import ArraySpec, DiscreteSpec

BOOLS = frozenset({bool, np.bool_})
NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})


class ObservationCheck:
    """Checks observations of one spec."""

    def __init__(self, spec: ArraySpec | DiscreteSpec, check_range: bool = True) -> None:
        """Prepares the checks; `check_range=False` accepts values outside the declared bounds."""
        self.spec = spec
        self._low = self._high = None
        if isinstance(spec, ArraySpec):
            self._low, self._high = _checked_bounds(spec, check_range)
        self._check_finite = self._low is None and np.dtype(spec.dtype).kind == "f"
        self._good = np.empty(0, bool)

    def one(self, observation: Any) -> str | None:
        """What is wrong with the form (type, shape, dtype) of one observation; None if nothing."""
        spec = self.spec
        if isinstance(spec, DiscreteSpec):
            if not isinstance(observation, numbers.Integral) and not _is_integer_scalar(observation):
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

    def rows(self, stored: np.ndarray) -> tuple[int, str] | None:
        """(row, what is wrong) of the first row of `stored` [R, ...] that is not finite or out of range; or None."""
        if self._good.shape != stored.shape:
            self._good = np.empty(stored.shape, bool)
        good = self._good  # this runs at every step: no allocation, and count_nonzero is the cheapest "all"
        if self._check_finite:
            np.isfinite(stored, good)
            if np.count_nonzero(good) != good.size:
                return _first_bad(good, stored, "a finite value")
        if self._low is not None and self._high is not None:
            np.greater_equal(stored, self._low, good)
            if np.count_nonzero(good) != good.size:
                return _first_bad(good, stored, f"at least {_shown(self._low)} (the space's low)")
            np.less_equal(stored, self._high, good)
            if np.count_nonzero(good) != good.size:
                return _first_bad(good, stored, f"at most {_shown(self._high)} (the space's high)")
        return None


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


def reward_error(reward: Any) -> str | None:
    """What is wrong with a reward; None if it is a finite real number."""
    if isinstance(reward, bool | np.bool_) or not isinstance(reward, numbers.Real | np.floating | np.integer):
        return f"expected a number, got {describe(reward)}"
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(reward)):
            return f"expected a finite float32, got {reward}"
    return None


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


def _first_bad(good: np.ndarray, stored: np.ndarray, expected: str) -> tuple[int, str]:
    row, *place = (int(index) for index in np.argwhere(~good)[0])
    at = f" at {place}" if place else ""
    return row, f"expected {expected}{at}, got {stored[(row, *place)]}"


def _shown(bound: np.ndarray) -> str:
    return str(bound) if bound.size <= 8 else f"bounds of shape {bound.shape}"
