"""Calls of the head of a Ray cluster, with a deadline.

Ray's own calls wait for a lost head without one. After some time Ray ends the process from C++ with status 1, so that a run saves
nothing. Here a lost head is an error before that.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from jaxsrl.cluster.protocol.engine import ClusterLostError
from jaxsrl.cluster.ray.local_nodes import RECONNECT
from jaxsrl.machine.lifecycle import call_in_thread

_LOST_SECONDS = 30.0  # half of Ray's own value: on other machines, Ray's processes have that one
_LOOK_SECONDS = 10.0
_THREAD = "calls head"

T = TypeVar("T")


class Head:
    """The head of the cluster that this process is connected to. Thread-safety: one thread.

    The deadline is half of `RECONNECT` where the user has set it.

    Args:
        ray: the module.
    """

    def __init__(self, ray: Any) -> None:
        self._ray, self._limit = ray, float(os.environ.get(RECONNECT) or 0.0) / 2.0 or _LOST_SECONDS
        self._look: Future[Any] | None = None
        self._looked_at, self._is_lost = time.monotonic(), False

    def call(self, function: Callable[[], T]) -> T:
        """Returns the result of a function that waits for the head.

        Raises:
            ClusterLostError: If the head did not answer in time.
        """
        if not self._is_lost:
            result = call_in_thread(function, _THREAD)
            if not wait([result], self._limit).not_done:
                return result.result()
        raise self._lost_error()

    def check(self) -> None:
        """Starts a call of the head from time to time, without waiting; see `Engine.check`."""
        now = time.monotonic()
        if self._look is None:
            if now - self._looked_at >= _LOOK_SECONDS and not self._is_lost:
                self._looked_at, self._look = now, call_in_thread(self._nodes, _THREAD)
        elif self._look.done():
            self._look = None
        # This process may have been paused: the answer then comes now.
        elif now - self._looked_at > self._limit and wait([self._look], 1.0).not_done:
            self._look = None
            raise self._lost_error()

    def _nodes(self) -> None:
        if self._ray.is_initialized():  # otherwise the call would start another cluster
            self._ray.nodes()

    def _lost_error(self) -> ClusterLostError:
        self._is_lost = True
        return ClusterLostError(
            f"the head of the Ray cluster is lost: it did not answer for {self._limit:g} s. Look at the memory and the logs of its "
            f"process (gcs_server) and its machine, and start Ray again if you started it. The same command resumes from the "
            f"newest checkpoint"
        )
