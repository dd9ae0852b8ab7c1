"""Versions of the parameters on their way to hosts and inference servers: one flat buffer each."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agents.api import Params
from envpool_bridge.shm.packed_arrays import ParamsLayout, view_leaves
from jaxsrl.cluster.protocol.engine import Engine
from jaxsrl.cluster.protocol.setup import HostSetup
from jaxsrl.collect.acting_agent import layout_of, params_shapes

_WAIT_SECONDS = 0.2
_START_SECONDS = 600.0


class PublishedVersions:
    """The versions that a host which starts now may need. One thread.

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
        block = np.zeros(self._layout.block_bytes, np.uint8)
        leaves = jax.device_get(jax.tree.leaves(params))
        for target, leaf in zip(view_leaves(self._layout, block), leaves, strict=True):
            target[...] = leaf
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


class VersionQueue:
    """Versions as a process receives them, in any order and even before its setup. They are published in their order.

    Args:
        changed: held while a version is published, and notified after it.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._early: dict[int, np.ndarray] = {}  # versions whose turn has not come
        self._publish: Callable[[int, Params], None] | None = None  # once it is open
        self._first = self._next = 0

    def open(self, setup: HostSetup, publish: Callable[[int, Params], None]) -> None:
        """Publishes the versions so far, from the first one of the setup, and all later ones."""
        shapes = params_shapes(setup.config.agent)
        with self._changed:
            self._layout, self._structure = layout_of(shapes), jax.tree.structure(shapes)
            self._publish, self._first, self._next = publish, setup.first_version, setup.first_version
            self._publish_ready()

    def receive(self, version: int, block: np.ndarray) -> None:
        """Takes a version; `block` is flat, as `layout_of` the agent's parameters says, and may be read-only."""
        with self._changed:
            self._early[version] = block
            self._publish_ready()

    def wait_for_first(self, raise_if_closed: Callable[[], None]) -> None:
        """Waits until the first version was published.

        Args:
            raise_if_closed: raises where the process was closed.

        Raises:
            TimeoutError: If it did not come in time.
        """
        deadline, first = time.monotonic() + _START_SECONDS, self._first
        with self._changed:
            while self._next == first:
                raise_if_closed()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"version {first} of the parameters did not come within {_START_SECONDS:g} s")
                self._changed.wait(_WAIT_SECONDS)

    def _publish_ready(self) -> None:
        while self._publish is not None and self._next in self._early:
            leaves = view_leaves(self._layout, self._early.pop(self._next))
            self._publish(self._next, jax.tree.unflatten(self._structure, leaves))
            self._next += 1
        self._changed.notify_all()
