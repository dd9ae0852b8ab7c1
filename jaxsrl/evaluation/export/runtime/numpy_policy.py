"""The exported policy on numpy."""

from collections.abc import Callable

import numpy as np

from jaxsrl.evaluation.export.runtime.base_policy import BasePolicy


class NumpyPolicy(BasePolicy):
    """The policy in numpy. It takes the most likely actions.

    Attributes:
        network: maps arrays by name, the number of environments and the inputs to actions and state.
    """

    network: Callable[..., tuple[np.ndarray, ...]]

    def compute(self, rows: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return list(self.network(self._arrays, rows // self._rows_per_env, *inputs))
