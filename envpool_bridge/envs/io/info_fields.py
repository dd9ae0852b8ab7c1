"""Numbers of the environments' infos, recorded with every step that reports them."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.output_rules import raise_bad_output
from envpool_bridge.envs.protocol import StepRows


def write_infos(
    env_id: str, row_ids: Sequence[int], step: int, infos: Sequence[Mapping[str, Any]], out: StepRows
) -> None:
    """Writes the fields that `out` has; values that an environment does not report stay NaN.

    Args:
        env_id: Environment id for the message.
        row_ids: ids of the R rows.
        step: Step for the message.
        infos: one for each row.
        out: target with prepared `infos`, [R] each.

    Raises:
        BadEnvOutputError: If a field is not a number.
    """
    for name, target in out.infos.items():
        for row, info in enumerate(infos):
            value = info.get(name)
            if value is None:
                continue
            if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "fiub":
                value = value.item()
            if not isinstance(value, numbers.Real | np.bool_):
                problem = f"expected a number in a recorded info field, got {validation.describe(value)}"
                raise_bad_output(env_id, row_ids[row], step, f"info[{name!r}]", problem)
            target[row] = value
