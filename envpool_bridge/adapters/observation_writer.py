"""Writes the observations of several environments into one array; whatever has another form than the spec is refused."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from envpool_bridge.adapters import validation
from envpool_bridge.specs import DiscreteSpec, EnvSpec

_ARRAY = frozenset({np.ndarray})
_INTEGERS = frozenset({int, np.int64, np.int32})
_SMALL_BYTES = 2048  # of an observation, up to which joining bytes (which copies once more) beats numpy's own joining
_dtype_of, _shape_of = attrgetter("dtype"), attrgetter("shape")


class ObservationWriter:
    """Writes [R, ...] observations, each as an environment returned it.

    The usual case is done in C for all rows at once; what does not fit there is looked at row by row, for a message that
    names the row.
    """

    def __init__(self, spec: EnvSpec, row_ids: Sequence[int]) -> None:
        """For rows of these ids."""
        self._env_id, self._row_ids = spec.env_id, row_ids
        self._spec = observation = spec.observation
        self._form = validation.ObservationForm(observation)
        self._num_rows, self._shape = len(row_ids), observation.shape
        self._dtype = np.dtype(observation.source_dtype)
        self._joins = not isinstance(observation, DiscreteSpec) and len(self._shape) > 0
        self._small = self._dtype.itemsize * int(np.prod(self._shape)) <= _SMALL_BYTES
        # What the environments compute in 64 bits is joined in 64 bits, then stored in the dtype of the slot.
        self._wide = observation.source_dtype != observation.dtype
        wide_shape = (self._num_rows, *self._shape) if self._wide and self._joins else (0,)
        self._buffer = np.empty(wide_shape, self._dtype)

    def write(self, observations: Sequence[Any], out: np.ndarray, step: int, strict: bool) -> None:
        """Writes one observation a row into `out` [R, ...], which is contiguous.

        Args:
            observations: one a row.
            out: [R, ...].
            step: for the message.
            strict: whether to look at every type and shape; without, an array of another shape passes if it holds as many
                elements of the right dtype, in the same order.

        Raises:
            BadEnvOutputError: an observation has another type, shape or dtype, or does not fit the stored dtype.
        """
        if not (self._joins and self._join(observations, self._buffer if self._wide else out, strict)):
            self._write_one_by_one(observations, out, step)
        elif self._wide:
            self._store(out, step)

    def _join(self, observations: Sequence[Any], target: np.ndarray, strict: bool) -> bool:
        """Joins what has the usual form; False if something has not."""
        num_rows = self._num_rows
        try:
            if [*map(_dtype_of, observations)].count(self._dtype) != num_rows:
                return False
            if strict:
                if not _ARRAY.issuperset(map(type, observations)):
                    return False
                if [*map(_shape_of, observations)].count(self._shape) != num_rows:
                    return False
            if self._small:
                target.data.cast("B")[:] = b"".join(observations)
            else:
                np.concatenate(observations, out=target.reshape((-1, *self._shape[1:]), copy=False), casting="no")
        except (AttributeError, BufferError, TypeError, ValueError):
            return False
        return True

    def _store(self, out: np.ndarray, step: int) -> None:
        joined = self._buffer
        with np.errstate(over="ignore"):  # becomes infinite, which `verify` refuses
            out[...] = joined
        if joined.dtype.kind in "iu" and not np.array_equal(joined, out):
            row = int(np.argwhere(joined != out)[0][0])
            self._refuse(row, step, f"expected values that fit {out.dtype}, got {joined[row]}")

    def _write_one_by_one(self, observations: Sequence[Any], out: np.ndarray, step: int) -> None:
        spec = self._spec
        if isinstance(spec, DiscreteSpec) and _INTEGERS.issuperset(map(type, observations)):
            values = np.asarray(observations, np.int64) - spec.start
            if values.min() >= 0 and values.max() < spec.num_values:
                out[...] = values
                return
        for row, observation in enumerate(observations):
            problem = self._form.problem(observation)
            if problem is not None:
                self._refuse(row, step, problem)
            out[row] = int(observation) - spec.start if isinstance(spec, DiscreteSpec) else observation

    def _refuse(self, row: int, step: int, problem: str) -> None:
        validation.refuse(self._env_id, self._row_ids[row], step, "observation", problem)
