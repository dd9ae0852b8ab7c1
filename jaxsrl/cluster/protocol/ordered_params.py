"""Versions of the parameters as a process of the cluster receives them: in any order, to be taken one after another."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agents.api import Params
from envpool_bridge.shm.packed_arrays import ParamsLayout, view_leaves


class ParamsInTurn:
    """Hands versions on in their order. Not thread-safe: the caller has a lock.

    Args:
        layout: of a version's flat buffer.
        template: of the parameters; its leaves do not matter.
        first: version that is handed on first.
        hand_on: is given each version and its parameters, views of the buffer.

    Attributes:
        next_version: that is handed on next.
    """

    def __init__(
        self, layout: ParamsLayout, template: Params, first: int, hand_on: Callable[[int, Params], None]
    ) -> None:
        self._layout, self._structure, self._hand_on = layout, jax.tree.structure(template), hand_on
        self._early: dict[int, np.ndarray] = {}  # versions whose turn has not come
        self.next_version = first

    def receive(self, version: int, block: np.ndarray) -> None:
        """Takes a version in; hands on what can be."""
        self._early[version] = block
        while self.next_version in self._early:
            block = self._early.pop(self.next_version)
            params: Any = jax.tree.unflatten(self._structure, view_leaves(self._layout, block))
            self._hand_on(self.next_version, params)
            self.next_version += 1
