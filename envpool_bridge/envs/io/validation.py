"""Validation of environment output: nothing is cast, broadcast or accepted silently.

Checks are split by cost: the form (type, shape, dtype) of everything at every step, the values (finite, in range) of
many steps at once.
"""

import numbers
from collections.abc import Sequence
from operator import le
from typing import Any, NoReturn

import numpy as np

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec, MultiDiscreteSpec, SpecTree
from envpool_bridge.spec.tree import Tree, items, leaves, shown_path

BOOLS = frozenset({bool, np.bool_})
NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
_FEW = 4096
_FEW_ROWS, _FEW_ELEMENTS = 8, 16  # for so few numbers, comparisons in Python are faster than calls of numpy
_LARGEST = {dtype: float(np.finfo(dtype).max) for dtype in ("float32", "float64")}


class ObservationForm:
    """Validator of the form of single values of one leaf: type, shape, dtype, and the range of a discrete one."""

    def __init__(self, spec: LeafSpec) -> None:
        self.spec = spec
        self._shape, self._dtype = spec.stored_shape, np.dtype(spec.source_dtype)
        self._is_array = isinstance(spec, ArraySpec)

    def problem(self, observation: Any) -> str | None:
        """Returns the problem of one value, or None."""
        spec = self.spec
        is_array = self._is_array and type(observation) is np.ndarray
        if is_array and observation.shape == self._shape and observation.dtype == self._dtype:
            return None  # the usual case
        if isinstance(spec, DiscreteSpec):
            if type(observation) is bool or not (
                isinstance(observation, numbers.Integral) or _is_integer_scalar(observation)
            ):
                return f"expected an integer, got {describe(observation)}"
            if not spec.start <= int(observation) < spec.start + spec.num_values:
                return f"expected {spec.start} <= value < {spec.start + spec.num_values}, got {observation}"
            return None
        # Gymnasium samples numpy scalars from integer spaces of shape ().
        if not isinstance(observation, np.ndarray) and not (self._shape == () and isinstance(observation, np.generic)):
            return f"expected a numpy array of shape {spec.stored_shape} and dtype {spec.source_dtype}, got {describe(observation)}"
        if observation.shape != spec.stored_shape:
            return f"expected shape {spec.stored_shape}, got {observation.shape}"
        if observation.dtype != spec.source_dtype:
            return f"expected dtype {spec.source_dtype}, got {observation.dtype}"
        if isinstance(spec, MultiDiscreteSpec):
            return _range_problem(spec, np.asarray(observation))
        return None


def _range_problem(spec: MultiDiscreteSpec, value: np.ndarray) -> str | None:
    stored = value.astype(np.int64) - spec.starts
    bad = np.argwhere((stored < 0) | (stored >= np.asarray(spec.num_values).reshape(spec.shape)))
    if not len(bad):
        return None
    place = tuple(int(number) for number in bad[0])
    start = int(spec.starts[place])
    size = int(np.asarray(spec.num_values).reshape(spec.shape)[place])
    return f"expected {start} <= value < {start + size} at {list(place)}, got {value[place]}"


class ValueCheck:
    """Validator of the values of many steps at once: observations finite and in range, rewards finite, an action legal.

    Args:
        spec: spec of a row.
        row_ids: ids of the rows.
        strict: see OutputRules.
    """

    def __init__(self, spec: EnvSpec, row_ids: Sequence[int], strict: bool = True) -> None:
        self._env_id, self._row_ids = spec.env_id, row_ids
        observation_leaves = list(items(spec.observation))
        self._checks = [
            (place, shown_path("observation", path), _LeafValueCheck(leaf, len(row_ids), strict))
            for place, (path, leaf) in enumerate(observation_leaves)
            if isinstance(leaf, ArraySpec)  # a discrete value is validated before it is stored
        ]
        mask = tuple(spec.action_mask)
        self._mask = next((place for place, (path, _) in enumerate(observation_leaves) if mask and path == mask), None)
        self._mask_field = shown_path("observation", mask)
        self._mask_groups = mask_groups(spec.action)

    def verify(self, observation: Tree, reward: np.ndarray | None, newest_step: int) -> None:
        """Raises on the first bad value.

        Args:
            observation: [N, R, *stored_shape] a leaf, of the steps `newest_step - N + 1` to `newest_step`.
            reward: [N, R], or None.
            newest_step: for the message.

        Raises:
            BadEnvOutputError: names the row, the step and the field.
        """
        arrays = leaves(observation)
        bad = self._first_bad(arrays)
        if bad is None and reward is not None:
            good = np.isfinite(reward)
            if not _all_true(good):
                bad = "reward", *_first_bad(good, reward, f"a finite {reward.dtype}")
        if bad is not None:
            field, place, row, problem = bad
            raise_bad_output(self._env_id, self._row_ids[row], newest_step - len(arrays[0]) + 1 + place, field, problem)

    def verify_rows(self, rows: Sequence[int], observation: Tree, step: int) -> None:
        """Raises on the first bad value of some rows in one step.

        Args:
            rows: N indices in [0, R).
            observation: observations of all rows, [R, *stored_shape] a leaf.
            step: for the message.

        Raises:
            BadEnvOutputError: names the row, the step and the field.
        """
        arrays = leaves(observation)
        if self._mask is None and all(check.accepts_few(rows, arrays[place]) for place, _, check in self._checks):
            return
        bad = self._first_bad([array[rows, None] for array in arrays])
        if bad is not None:
            field, place, _, problem = bad
            raise_bad_output(self._env_id, self._row_ids[rows[place]], step, field, problem)

    def _first_bad(self, arrays: Sequence[np.ndarray]) -> tuple[str, int, int, str] | None:
        """Returns (field, step, row, problem) of the first bad value of leaves [N, R, ...] or [N, 1, ...], or None."""
        for place, name, check in self._checks:
            bad = check.first_bad(arrays[place])
            if bad is not None:
                return name, *bad
        bad = None if self._mask is None else _illegal_mask(arrays[self._mask], self._mask_groups)
        return None if bad is None else (self._mask_field, *bad)


class _LeafValueCheck:
    """Validator of finiteness and range of one leaf."""

    def __init__(self, spec: ArraySpec, num_rows: int, strict: bool) -> None:
        low, high = _checked_bounds(spec, strict)
        self._bounds = {"low": low, "high": high}
        self._low, self._high = _for_rows(low, spec, num_rows), _for_rows(high, spec, num_rows)
        self._check_finite = low is None and np.dtype(spec.dtype).kind == "f"
        self._few_ranges = _ranges_of_few(low, high, spec)

    def accepts_few(self, rows: Sequence[int], stored: np.ndarray) -> bool:
        """Returns True if the values of these rows of [R, ...] are good, False if `first_bad` must look at them."""
        if self._few_ranges is None or len(rows) > _FEW_ROWS:
            return False
        values: list[Any] = []
        for row in rows:
            values += stored[row].ravel().tolist()
        lows, highs = self._few_ranges
        return all(map(le, lows, values)) and all(map(le, values, highs))

    def first_bad(self, stored: np.ndarray) -> tuple[int, int, str] | None:
        """Returns (step, row, problem) of the first bad value of [N, R, ...] or [N, 1, ...], or None."""
        # Rows and elements as one axis, so that numpy's inner loop is long.
        flat = stored.reshape(len(stored), -1)
        if self._check_finite:
            good = np.isfinite(flat)
            if not _all_true(good):
                return _first_bad(good.reshape(stored.shape), stored, "a finite value")
        for bound, compare, side, name in (
            (self._low, np.greater_equal, "least", "low"),
            (self._high, np.less_equal, "most", "high"),
        ):
            if bound is not None:
                good = compare(flat, bound[: flat.shape[1]] if bound.ndim else bound)
                if not _all_true(good):
                    shown = _shown(self._bounds[name])
                    return _first_bad(good.reshape(stored.shape), stored, f"at {side} {shown} (the space's {name})")
        return None


def _all_true(flags: np.ndarray) -> bool:
    # For few flags, starting numpy's reduction takes ten times as long as searching their bytes.
    return b"\0" not in flags.tobytes() if flags.size < _FEW else bool(flags.all())


def mask_groups(action: SpecTree) -> tuple[int, ...]:
    """Returns the number of values of each choice of a discrete action, in the order of its mask; () for other actions."""
    if isinstance(action, DiscreteSpec):
        return (action.num_values,)
    return action.num_values if isinstance(action, MultiDiscreteSpec) else ()


def _illegal_mask(mask: np.ndarray, groups: tuple[int, ...]) -> tuple[int, int, str] | None:
    """Returns (step, row, problem) of the first mask [N, R, sum of groups] with a choice without legal values, or None."""
    begins = np.cumsum((0, *groups[:-1]))
    legal = np.add.reduceat(mask != 0, begins, axis=-1)
    if legal.all():
        return None
    place, row, choice = (int(number) for number in np.argwhere(legal == 0)[0])
    return place, row, f"expected at least one legal value, got none for choice {choice} ({groups[choice]} values)"


def _for_rows(bound: np.ndarray | None, spec: ArraySpec, num_rows: int) -> np.ndarray | None:
    """Returns a bound in a shape that broadcasts against [N, R * elements]."""
    if bound is None or bound.ndim == 0:
        return bound
    return np.tile(np.broadcast_to(bound, spec.stored_shape).reshape(-1), num_rows)


def _ranges_of_few(
    low: np.ndarray | None, high: np.ndarray | None, spec: ArraySpec
) -> tuple[list[Any], list[Any]] | None:
    """Returns the bounds of each element of `_FEW_ROWS` rows; None for large observations."""
    if np.prod(spec.stored_shape) > _FEW_ELEMENTS:
        return None
    if low is None or high is None:
        largest = float(np.finfo(spec.dtype).max) if np.dtype(spec.dtype).kind == "f" else float("inf")
        low, high = np.asarray(-largest), np.asarray(largest)
    each = [np.broadcast_to(bound, spec.stored_shape).ravel().tolist() * _FEW_ROWS for bound in (low, high)]
    return each[0], each[1]


def _checked_bounds(spec: ArraySpec, strict: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the bounds to compare with; (None, None) if every value is legal, or only finiteness is validated."""
    low, high = (spec.bound("low"), spec.bound("high")) if strict else (None, None)
    if low is None and high is None:
        return None, None
    if np.dtype(spec.dtype).kind == "b":
        return None, None  # every bool is legal
    if np.dtype(spec.dtype).kind != "f":
        limits = np.iinfo(spec.dtype)
        return (
            np.asarray(limits.min, spec.dtype) if low is None else low,
            np.asarray(limits.max, spec.dtype) if high is None else high,
        )
    # With the largest finite number in place of infinity, the same comparisons reject infinity and NaN.
    largest = np.finfo(spec.dtype).max
    low = np.maximum(-largest if low is None else low, -largest)
    high = np.minimum(largest if high is None else high, largest)
    return np.asarray(low, spec.dtype), np.asarray(high, spec.dtype)


def reward_error(reward: Any, dtype: str = "float32") -> str | None:
    """Returns the problem of a reward; None for a real number that is finite in `dtype`, its stored dtype."""
    if isinstance(reward, bool | np.bool_) or not isinstance(reward, numbers.Real | np.floating | np.integer):
        return f"expected a number, got {describe(reward)}"
    try:
        with np.errstate(over="ignore"):
            finite = bool(np.isfinite(np.dtype(dtype).type(reward)))
    except OverflowError:  # a Python int above all floats
        finite = False
    return None if finite else f"expected a finite {dtype}, got {str(reward)[:60]}"


def are_plain_rewards(rewards: Sequence[Any], dtype: str = "float32") -> bool:
    """Returns whether all are ordinary numbers that are finite in `dtype`: fast; `reward_error` describes the exceptions."""
    largest = _LARGEST[dtype]
    return NUMBERS.issuperset(map(type, rewards)) and all(-largest <= reward <= largest for reward in rewards)


def flag_error(flag: Any) -> str | None:
    """Returns the problem of a `terminated` or `truncated` flag; None for a bool."""
    return None if type(flag) in BOOLS else f"expected a bool, got {describe(flag)}"


def raise_bad_output(env_id: str, row: int, step: int, field: str, problem: str) -> NoReturn:
    """Raises the error for a bad field."""
    raise BadEnvOutputError(
        f"{env_id}, row {row}, step {step}: bad {field}: {problem}. "
        f"Fix the environment, or declare its actual output in its spaces"
    )


def describe(value: Any) -> str:
    """Describes a wrong value briefly."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _is_integer_scalar(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"


def _first_bad(good: np.ndarray, stored: np.ndarray, expected: str) -> tuple[int, int, str]:
    """Returns (index of the step, row, problem) of the first value that is not good."""
    index, row, *place = (int(number) for number in np.argwhere(~good)[0])
    at = f" at {place}" if place else ""
    return index, row, f"expected {expected}{at}, got {stored[(index, row, *place)]}"


def _shown(bound: np.ndarray | None) -> str:
    return str(bound) if bound is None or bound.size <= 8 else f"bounds of shape {bound.shape}"
