"""Writer of a vector environment's observations, all rows at once; raises if their form differs from the spec."""

from collections.abc import Sequence

import numpy as np

from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.observation_writer import structure_problem
from envpool_bridge.spec.encoding import start_of
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import Path, Tree, items, leaves, lookup, shown_path


class VectorObservationWriter:
    """Writer of a vector environment's results, with one copy of each leaf: native ones cannot write into the slot.

    Args:
        spec: spec of a row.
        row_ids: ids of the rows.
    """

    def __init__(self, spec: EnvSpec, row_ids: Sequence[int]) -> None:
        self._env_id, self._row_ids = spec.env_id, row_ids
        self._spec = spec.observation
        self._leaves = [(path, _LeafWriter(leaf, len(row_ids))) for path, leaf in items(spec.observation)]
        self._is_one_leaf = isinstance(spec.observation, LeafSpec)

    def write(self, observation: Tree, out: Tree, step: int) -> None:
        """Writes one observation of all rows.

        Args:
            observation: [R, *stored_shape] a leaf, in the source's dtypes.
            out: [R, *stored_shape] a leaf, in the stored dtypes.
            step: for the message.

        Raises:
            BadEnvOutputError: wrong structure, type, shape or dtype, or values that do not fit the stored dtype.
        """
        if not self._is_one_leaf:
            difference = structure_problem(self._spec, observation, ())
            if difference is not None:
                self._raise(0, step, *difference)
        for (path, writer), target in zip(self._leaves, leaves(out), strict=True):
            problem = writer.write(lookup(observation, path), target)
            if problem is not None:
                self._raise(problem[0], step, path, problem[1])

    def _raise(self, row: int, step: int, path: Path, problem: str) -> None:
        validation.raise_bad_output(self._env_id, self._row_ids[row], step, shown_path("observation", path), problem)


class _LeafWriter:
    """Writer of one leaf of R rows."""

    def __init__(self, spec: LeafSpec, num_rows: int) -> None:
        self._spec = spec
        self._shape = (num_rows, *spec.stored_shape)
        self._source = np.dtype(spec.source_dtype)
        self._narrows = self._source != np.dtype(spec.dtype)
        self._sizes = np.zeros(())  # of a discrete leaf, in a shape that broadcasts against [R, ...]
        if not isinstance(spec, ArraySpec):
            sizes = spec.num_values
            self._sizes = np.asarray(sizes, np.int64).reshape(() if isinstance(spec, DiscreteSpec) else spec.shape)

    def write(self, values: object, out: np.ndarray) -> tuple[int, str] | None:
        """Writes all rows; returns (row, problem) on failure."""
        if not isinstance(values, np.ndarray) or values.shape != self._shape:
            return 0, f"expected an array of shape {self._shape}, got {validation.describe(values)}"
        if not isinstance(self._spec, ArraySpec):
            return self._write_discrete(values, out)
        if values.dtype != self._source:
            return 0, f"expected dtype {self._source}, got {values.dtype}"
        if not self._narrows:
            out[...] = values
            return None
        with np.errstate(over="ignore"):  # becomes infinite, which `verify` rejects
            out[...] = values
        if self._source.kind in "iu" and not np.array_equal(values, out):
            row = int(np.argwhere(values != out)[0][0])
            return row, f"expected values that fit {out.dtype}, got {values[row]}"
        return None

    def _write_discrete(self, values: np.ndarray, out: np.ndarray) -> tuple[int, str] | None:
        # Any integer dtype: native environments return int32 where Gymnasium's spaces have int64.
        if values.dtype.kind not in "iu":
            return 0, f"expected integers, got dtype {values.dtype}"
        start = start_of(self._spec)
        stored = values.astype(np.int64) - start
        good = (stored >= 0) & (stored < self._sizes)
        if good.all():
            out[...] = stored
            return None
        row, *place = (int(number) for number in np.argwhere(~good)[0])
        low = int(np.broadcast_to(start, values.shape)[(row, *place)])
        size = int(np.broadcast_to(self._sizes, values.shape)[(row, *place)])
        at = f" at {place}" if place else ""
        return row, f"expected {low} <= value < {low + size}{at}, got {values[(row, *place)]}"
