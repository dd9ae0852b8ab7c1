"""Validation of environment output: nothing is cast, broadcast or accepted silently (see `OutputRules`).

Checks are split by cost: the form (type, shape, dtype) of everything at every step, the values (finite, in range) of
many steps at once.
"""

import numbers
from collections.abc import Callable, Sequence
from operator import le
from typing import Any

import numpy as np

from envpool_bridge.envs.io.output_rules import (
    OutputRules,
    as_numpy,
    converted,
    describe,
    flag_of,
    number_of,
)
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec, MultiDiscreteSpec, SpecTree
from envpool_bridge.spec.tree import Tree, items, leaves, shown_path

BOOLS = frozenset({bool, np.bool_})
NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
_FEW = 4096
_ULPS = 16  # of float32 at most, at the larger bound: an environment's rounding may leave the bounds by so much
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
        observation = as_numpy(observation)
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

    def repaired(self, observation: Any) -> Any:
        """Returns an equal or rounded value in the right form; None if there is none."""
        value = converted(observation, self._shape, self._dtype)
        return value if value is None or self.problem(value) is None else None


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
        rules: treatment of bad values; all but non-finite ones and masks can be accepted.
    """

    def __init__(self, spec: EnvSpec, rules: OutputRules) -> None:
        self._rules, num_rows = rules, len(rules.row_ids)
        observation_leaves = list(items(spec.observation))
        self._checks = [
            (place, shown_path("observation", path), _LeafValueCheck(leaf, num_rows))
            for place, (path, leaf) in enumerate(observation_leaves)
            if isinstance(leaf, ArraySpec)  # a discrete value is validated before it is stored
        ]
        mask = tuple(spec.action_mask)
        self._mask = next((place for place, (path, _) in enumerate(observation_leaves) if mask and path == mask), None)
        self._mask_field = shown_path("observation", mask)
        self._mask_groups = mask_groups(spec.action)

    def verify(self, observation: Tree, reward: np.ndarray | None, newest_step: int) -> None:
        """Treats bad values.

        Args:
            observation: [N, R, *stored_shape] a leaf, of the steps `newest_step - N + 1` to `newest_step`.
            reward: [N, R], or None.
            newest_step: Newest step for the message.

        Raises:
            BadEnvOutputError: names the row, the step and the field.
        """
        arrays = leaves(observation)
        if self._first_bad(arrays) is None and (reward is None or _all_true(np.isfinite(reward))):
            return
        first_step = newest_step - len(arrays[0]) + 1
        self._judge(arrays, reward, lambda place, row: (row, first_step + place))

    def verify_rows(self, rows: Sequence[int], observation: Tree, step: int) -> None:
        """Treats the bad values of some rows in one step.

        Args:
            rows: N indices in [0, R).
            observation: observations of all rows, [R, *stored_shape] a leaf.
            step: Step for the message.

        Raises:
            BadEnvOutputError: names the row, the step and the field.
        """
        arrays = leaves(observation)
        if self._mask is None and all(check.accepts_few(rows, arrays[place]) for place, _, check in self._checks):
            return
        chosen = [array[rows, None] for array in arrays]
        if self._first_bad(chosen) is not None:
            self._judge(chosen, None, lambda place, _: (rows[place], step))

    def _judge(
        self, arrays: Sequence[np.ndarray], reward: np.ndarray | None, locate: Callable[[int, int], tuple[int, int]]
    ) -> None:
        """Treats bad values of leaves [N, R, ...]; `locate` returns (row, step) of an entry of [N, R]."""
        rules = self._rules
        broken = None if rules.allows_nan else self._first_bad(arrays, bounds=False)
        finite = np.ones(arrays[0].shape[:2], bool) if reward is None else np.isfinite(reward)
        if broken is None and reward is not None and not finite.all():
            broken = "reward", *_first_bad(finite, reward, f"a finite {reward.dtype}")
        if broken is not None and not rules.allows_nan:
            field, place, row, problem = broken
            rules.reject(*locate(place, row), field, problem)
        field, _, _, problem = self._first_bad(arrays) or broken or ("reward", 0, 0, "")
        bad = ~finite
        for place, _, check in self._checks:
            bad |= check.outside(arrays[place])
        for place, row in np.argwhere(bad).tolist():
            rules.repair(*locate(place, row), field, problem)

    def _first_bad(self, arrays: Sequence[np.ndarray], bounds: bool = True) -> tuple[str, int, int, str] | None:
        """Returns (field, step, row, problem) of the first bad value of leaves [N, R, ...] or [N, 1, ...], or None.

        Args:
            arrays: the leaves.
            bounds: False ignores finite values outside the bounds.
        """
        for place, name, check in self._checks:
            bad = check.first_bad(arrays[place]) if bounds else check.first_not_finite(arrays[place])
            if bad is not None:
                return name, *bad
        bad = None if self._mask is None else _illegal_mask(arrays[self._mask], self._mask_groups)
        return None if bad is None else (self._mask_field, *bad)


class _LeafValueCheck:
    """Validator of finiteness and range of one leaf."""

    def __init__(self, spec: ArraySpec, num_rows: int) -> None:
        low, high = _checked_bounds(spec)
        self._bounds = {"low": spec.bound("low"), "high": spec.bound("high")}
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
            return self.first_not_finite(stored)
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

    def first_not_finite(self, stored: np.ndarray) -> tuple[int, int, str] | None:
        """Returns (step, row, problem) of the first value of [N, R, ...] that is not finite, or None."""
        good = np.isfinite(stored.reshape(len(stored), -1))
        return None if _all_true(good) else _first_bad(good.reshape(stored.shape), stored, "a finite value")

    def outside(self, stored: np.ndarray) -> np.ndarray:
        """Returns which entries of [N, R, ...] have a value that is not finite or outside the bounds, [N, R] bool."""
        flat = stored.reshape(len(stored), -1)
        good: np.ndarray = np.isfinite(flat)
        for bound, compare in ((self._low, np.greater_equal), (self._high, np.less_equal)):
            if bound is not None:
                good &= compare(flat, bound[: flat.shape[1]] if bound.ndim else bound)
        return np.logical_not(good.reshape(*stored.shape[:2], -1).all(-1))


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


def _checked_bounds(spec: ArraySpec) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the bounds to compare with; (None, None) if every value is legal, or only finiteness is validated."""
    low, high = spec.bound("low"), spec.bound("high")
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
    limits = np.finfo(spec.dtype)
    low = np.maximum(-limits.max if low is None else low, -limits.max)
    high = np.minimum(limits.max if high is None else high, limits.max)
    sizes = [np.where(np.abs(bound) < limits.max, np.abs(bound), 0) for bound in (low, high)]
    slack = _ULPS * min(limits.eps, np.finfo(np.float32).eps) * np.maximum(*sizes)
    return np.asarray(np.maximum(low - slack, -limits.max), spec.dtype), np.asarray(
        np.minimum(high + slack, limits.max), spec.dtype
    )


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


def plain_reward(rules: OutputRules, row: int, step: int, reward: Any, dtype: str = "float32") -> Any:
    """Returns a reward as a number, which is finite in `dtype` unless `rules.allows_nan`.

    Raises:
        BadEnvOutputError: If it is no number, or of another form where the rules are strict.
    """
    array = as_numpy(reward)
    given = array[()] if isinstance(array, np.ndarray) and not array.ndim else reward
    problem = reward_error(given, dtype)
    if problem is None:
        return given
    number = number_of(given)
    if number is None or not (rules.allows_nan or reward_error(number, dtype) is None):
        rules.reject(row, step, "reward", problem)
    if np.isfinite(number):  # others are counted by ValueCheck
        rules.repair(row, step, "reward", problem)
    return number


def plain_flag(rules: OutputRules, row: int, step: int, field: str, flag: Any) -> Any:
    """Returns a flag as a bool.

    Raises:
        BadEnvOutputError: If it is no flag, or of another form where the rules are strict.
    """
    array = as_numpy(flag)
    given = array[()] if isinstance(array, np.ndarray) and not array.ndim else flag
    problem = flag_error(given)
    if problem is None:
        return given
    plain = flag_of(given)
    if plain is None:
        rules.reject(row, step, field, problem)
    rules.repair(row, step, field, problem)
    return plain


def are_plain_rewards(rewards: Sequence[Any], dtype: str = "float32") -> bool:
    """Returns whether all are ordinary numbers that are finite in `dtype`: fast; `reward_error` describes the exceptions."""
    largest = _LARGEST[dtype]
    return NUMBERS.issuperset(map(type, rewards)) and all(-largest <= reward <= largest for reward in rewards)


def flag_error(flag: Any) -> str | None:
    """Returns the problem of a `terminated` or `truncated` flag; None for a bool."""
    return None if type(flag) in BOOLS else f"expected a bool, got {describe(flag)}"


def _is_integer_scalar(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"


def _first_bad(good: np.ndarray, stored: np.ndarray, expected: str) -> tuple[int, int, str]:
    """Returns (index of the step, row, problem) of the first value that is not good."""
    index, row, *place = (int(number) for number in np.argwhere(~good)[0])
    at = f" at {place}" if place else ""
    return index, row, f"expected {expected}{at}, got {stored[(index, row, *place)]}"


def _shown(bound: np.ndarray | None) -> str:
    return str(bound) if bound is None or bound.size <= 8 else f"bounds of shape {bound.shape}"
