"""Writer of a vector environment's observations, all rows at once; raises if their form differs from the spec."""

import numpy as np

from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.observation_writer import structure_problem
from envpool_bridge.envs.io.output_rules import OutputRules, as_numpy, converted
from envpool_bridge.spec.encoding import start_of
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import Tree, items, leaves, lookup, shown_path


class VectorObservationWriter:
    """Writer of a vector environment's results, with one copy of each leaf: native ones cannot write into the slot.

    Args:
        spec: spec of a row.
        rules: treatment of observations of another form.
    """

    def __init__(self, spec: EnvSpec, rules: OutputRules) -> None:
        self._rules = rules
        self._spec = spec.observation
        self._leaves = [(path, _LeafWriter(leaf, len(rules.row_ids))) for path, leaf in items(spec.observation)]
        self._is_one_leaf = isinstance(spec.observation, LeafSpec)

    def write(self, observation: Tree, out: Tree, step: int) -> None:
        """Writes one observation of all rows.

        Args:
            observation: [R, *stored_shape] a leaf, in the source's dtypes.
            out: [R, *stored_shape] a leaf, in the stored dtypes.
            step: Step for the message.

        Raises:
            BadEnvOutputError: wrong structure, type, shape or dtype, or values that do not fit the stored dtype.
        """
        if not self._is_one_leaf:
            difference = structure_problem(self._spec, observation, ())
            if difference is not None:
                self._rules.reject(0, step, shown_path("observation", difference[0]), difference[1])
        for (path, writer), target in zip(self._leaves, leaves(out), strict=True):
            values = as_numpy(lookup(observation, path))
            problem = writer.write(values, target)
            if problem is None:
                continue
            field, repaired = shown_path("observation", path), writer.repaired(values)
            if repaired is None or writer.write(repaired, target) is not None:
                self._rules.reject(problem[0], step, field, problem[1])
            for row in range(len(self._rules.row_ids)):
                self._rules.repair(row, step, field, problem[1])


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

    def repaired(self, values: object) -> np.ndarray | None:
        """Returns equal or rounded values in the right form; None if there are none."""
        return converted(values, self._shape, self._source)

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
