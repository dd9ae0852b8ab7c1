"""Versions of the parameters on their way to the hosts: one flat buffer each."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from agents.api import Params
from envpool_bridge.shm.packed_arrays import ParamsLayout, params_layout, view_leaves
from jaxsrl.cluster.protocol.engine import Engine


def layout_of(params: Params) -> ParamsLayout:
    """Returns the layout of parameters (or of their shapes) in a flat buffer."""
    return params_layout([(leaf.shape, np.dtype(leaf.dtype).name) for leaf in jax.tree.leaves(params)])


def packed(layout: ParamsLayout, leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the leaves copied into one buffer, [block_bytes] uint8."""
    block = np.zeros(layout.block_bytes, np.uint8)
    for target, leaf in zip(view_leaves(layout, block), leaves, strict=True):
        target[...] = leaf
    return block


class PublishedVersions:
    """The versions that a host which begins now could have to act with. One thread.

    Attributes:
        newest: number of the newest version; -1 before any.
        total_bytes: put so far.
    """

    def __init__(self, engine: Engine, layout: ParamsLayout, max_policy_lag: int) -> None:
        self._engine, self._layout = engine, layout
        self._kept = max_policy_lag + 1 if max_policy_lag <= 1 else 1
        self._held: OrderedDict[int, Any] = OrderedDict()
        self.newest, self.total_bytes = -1, 0

    def publish(self, version: int, params: Params) -> Any:
        """Puts a version into the cluster; returns what stands for it in calls."""
        block = packed(self._layout, jax.device_get(jax.tree.leaves(params)))
        put = self._engine.put(block)
        self._held[version] = put
        while len(self._held) > self._kept:
            self._held.popitem(last=False)
        self.newest = version
        self.total_bytes += block.nbytes
        return put

    @property
    def held(self) -> list[tuple[int, Any]]:
        """(version, what stands for it), oldest first, without a gap."""
        return list(self._held.items())
