"""Writer of several environments' observations into arrays; raises if their form differs from the spec."""

import contextlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np

from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.output_rules import OutputRules
from envpool_bridge.spec.encoding import start_of
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec, SpecTree
from envpool_bridge.spec.tree import Path, Tree, is_dict, is_tuple, items, leaves, lookup, shown_path

_ARRAY = frozenset({np.ndarray})
_INTEGERS = frozenset({int, np.int64, np.int32})
_SMALL_BYTES = 2048  # largest observation for which joining bytes (one more copy) is faster than numpy's own joining
_dtype_of, _shape_of = attrgetter("dtype"), attrgetter("shape")


class ObservationWriter:
    """Writer of observations in the form that environments return them, leaf by leaf.

    Args:
        spec: spec of a row.
        rules: treatment of observations of another form.
    """

    def __init__(self, spec: EnvSpec, rules: OutputRules) -> None:
        self._rules = rules
        self._spec = spec.observation
        self._leaves = [(path, _LeafWriter(rules, path, leaf)) for path, leaf in items(spec.observation)]
        self._frames = [leaf.frames if isinstance(leaf, ArraySpec) else 1 for leaf in leaves(spec.observation)]
        self._only = self._leaves[0][1] if isinstance(spec.observation, LeafSpec) else None

    def write(self, observations: Sequence[Any], out: Tree, step: int, thorough: bool) -> None:
        """Writes one observation for each row.

        Args:
            observations: one for each row.
            out: [R, *stored_shape] a leaf, contiguous.
            step: Step for the message.
            thorough: whether to validate every type and shape. Otherwise an array of another shape passes if it has the
                same number of elements of the right dtype, in the same order.

        Raises:
            BadEnvOutputError: If an observation has the wrong structure, type, shape or dtype, or does not fit the stored
                dtype.
        """
        if self._only is not None:
            self._only.write(observations, out, step, thorough)
            return
        if thorough:
            self._require_structure(observations, step)
        for (path, writer), target in zip(self._leaves, leaves(out), strict=True):
            writer.write(self._column(observations, path, step), target, step, thorough)

    def write_rows(self, rows: Sequence[int], observations: Sequence[Any], out: Tree, step: int) -> None:
        """Writes one observation for each of `rows`, N indices in [0, R); validates every type and shape.

        The arguments and exceptions are otherwise those of `write`.
        """
        if self._only is not None:
            self._only.write_rows(rows, observations, out, step)
            return
        self._require_structure(observations, step, rows)
        for (path, writer), target in zip(self._leaves, leaves(out), strict=True):
            writer.write_rows(rows, [lookup(observation, path) for observation in observations], target, step)

    def write_history(self, age: int, observations: Sequence[Any], rows: Sequence[int], history: Tree) -> None:
        """Writes the observations of some rows `age` steps before their newest one into their history.

        Args:
            age: Age, from 1.
            observations: one for each of `rows`.
            rows: indices in [0, R).
            history: [F-1, R, *stored_shape] for a leaf of F frames.
        """
        for (path, _), frames, target in zip(self._leaves, self._frames, leaves(history), strict=True):
            if age < frames:
                for row, observation in zip(rows, observations, strict=True):
                    target[frames - 1 - age, row] = lookup(observation, path)

    def _column(self, observations: Sequence[Any], path: Path, step: int) -> list[Any]:
        try:
            return [lookup(observation, path) for observation in observations]
        except (KeyError, IndexError, TypeError):
            self._require_structure(observations, step)
            raise

    def _require_structure(self, observations: Sequence[Any], step: int, rows: Sequence[int] | None = None) -> None:
        if self._only is not None:
            return
        for row, observation in zip(range(len(observations)) if rows is None else rows, observations, strict=True):
            problem = structure_problem(self._spec, observation, ())
            if problem is not None:
                path, text = problem
                is_fatal = structure_problem(self._spec, observation, (), exact=False) is not None
                treat = self._rules.reject if is_fatal else self._rules.repair
                treat(row, step, shown_path("observation", path), text)


def structure_problem(spec: SpecTree, value: Any, path: Path, exact: bool = True) -> tuple[Path, str] | None:
    """Returns the path at which a value's structure differs from its spec and the problem, or None.

    Args:
        spec: spec of the value.
        value: observation.
        path: Path of the value.
        exact: False accepts further items of a dict, and lists for tuples.
    """
    if is_dict(spec):
        if not isinstance(value, dict) or (set(value) != set(spec) if exact else not set(value) >= set(spec)):
            got = f"a dict of {sorted(map(str, value))}" if isinstance(value, dict) else validation.describe(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return path, f"expected a dict of {sorted(spec)}, got {got}"
        children = [(key, spec[key], value[key]) for key in sorted(spec)]
    elif is_tuple(spec):
        if not isinstance(value, tuple if exact else tuple | list) or len(value) != len(spec):  # pyright: ignore[reportUnknownArgumentType]
            return path, f"expected a tuple of {len(spec)}, got {validation.describe(value)}"
        children = [(number, child, value[number]) for number, child in enumerate(spec)]
    else:
        return None
    problems = (structure_problem(child, item, (*path, key), exact) for key, child, item in children)
    return next((problem for problem in problems if problem is not None), None)


class _LeafWriter:
    """Writer of one leaf of R rows.

    The usual case runs in C for all rows at once. Other values are validated row by row, for a message that names the
    row.
    """

    def __init__(self, rules: OutputRules, path: Path, spec: LeafSpec) -> None:
        self._rules, self._field = rules, shown_path("observation", path)
        self._spec = spec
        self._form = validation.ObservationForm(spec)
        self._num_rows, self._shape = len(rules.row_ids), spec.stored_shape
        self._dtype = np.dtype(spec.source_dtype)
        self._joins = not isinstance(spec, DiscreteSpec) and len(self._shape) > 0
        self._small = self._dtype.itemsize * int(np.prod(self._shape)) <= _SMALL_BYTES
        # 64-bit values are joined in 64 bits, then stored in the dtype of the slot.
        self._wide = spec.source_dtype != spec.dtype or not isinstance(spec, ArraySpec)
        wide_shape = (self._num_rows, *self._shape) if self._wide and self._joins else (0,)
        self._buffer = np.empty(wide_shape, self._dtype)

    def write(self, observations: Sequence[Any], out: np.ndarray, step: int, thorough: bool) -> None:
        if not (self._joins and self._join(observations, self._buffer if self._wide else out, thorough)):
            self._write_one_by_one(observations, out, step)
        elif self._wide:
            self._store(out, step)

    def _join(self, observations: Sequence[Any], target: np.ndarray, thorough: bool) -> bool:
        """Joins values of the usual form; returns False if one has another form."""
        try:
            if not self._has_usual_form(observations, thorough):
                return False
            if self._small:
                target.data.cast("B")[:] = b"".join(observations)
            else:
                np.concatenate(observations, out=target.reshape((-1, *self._shape[1:]), copy=False), casting="no")
        except (AttributeError, BufferError, TypeError, ValueError):
            return False
        return True

    def write_rows(self, rows: Sequence[int], observations: Sequence[Any], out: np.ndarray, step: int) -> None:
        """Writes the values of some rows."""
        for row, observation in zip(rows, observations, strict=True):
            self.write_row(row, observation, out, step)

    def _has_usual_form(self, observations: Sequence[Any], thorough: bool) -> bool:
        count = len(observations)
        if [*map(_dtype_of, observations)].count(self._dtype) != count:
            return False
        if not thorough:
            return True
        return (
            _ARRAY.issuperset(map(type, observations)) and [*map(_shape_of, observations)].count(self._shape) == count
        )

    def _store(self, out: np.ndarray, step: int) -> None:
        joined, spec = self._buffer, self._spec
        if not isinstance(spec, ArraySpec):
            self._store_discrete(joined, out, step)
            return
        with np.errstate(over="ignore"):  # becomes infinite, which `verify` rejects
            out[...] = joined
        if joined.dtype.kind in "iu" and not np.array_equal(joined, out):
            row = int(np.argwhere(joined != out)[0][0])
            self._require_fit(row, joined[row], out[row], step)

    def _store_discrete(self, joined: np.ndarray, out: np.ndarray, step: int) -> None:
        for row, value in enumerate(joined):
            problem = self._form.problem(value)
            if problem is not None:
                self._raise(row, step, problem)
        np.subtract(joined, start_of(self._spec), out=out, casting="unsafe")

    def _write_one_by_one(self, observations: Sequence[Any], out: np.ndarray, step: int) -> None:
        spec = self._spec
        if isinstance(spec, DiscreteSpec) and _INTEGERS.issuperset(map(type, observations)):
            with contextlib.suppress(OverflowError):  # an int of more than 64 bits is rejected below
                values = np.asarray(observations, np.int64) - spec.start
                if values.min() >= 0 and values.max() < spec.num_values:
                    out[...] = values
                    return
        for row, observation in enumerate(observations):
            self.write_row(row, observation, out, step)

    def write_row(self, row: int, observation: Any, out: np.ndarray, step: int) -> None:
        """Writes the value of one row."""
        problem = self._form.problem(observation)
        if problem is not None:
            repaired = self._form.repaired(observation)
            if repaired is None:
                self._raise(row, step, problem)
            self._rules.repair(row, step, self._field, problem)
            observation = repaired
        observation = validation.as_numpy(observation)
        if not isinstance(self._spec, ArraySpec):
            out[row] = observation - start_of(self._spec)
            return
        if not self._wide:
            out[row] = observation
            return
        with np.errstate(over="ignore"):  # becomes infinite, which `verify` rejects
            out[row] = observation
        self._require_fit(row, observation, out[row], step)

    def _require_fit(self, row: int, value: np.ndarray, stored: np.ndarray, step: int) -> None:
        """Raises if an integer does not fit the dtype in which it is stored."""
        if value.dtype.kind in "iu" and not np.array_equal(value, stored):
            self._raise(row, step, f"expected values that fit {stored.dtype}, got {value}")

    def _raise(self, row: int, step: int, problem: str) -> NoReturn:
        self._rules.reject(row, step, self._field, problem)
