"""Published parameters by version, within one process. The learner never waits for a reader."""

import threading
from collections import OrderedDict

from agents.api import Params
from jaxsrl.collect.params.shared_memory import describe_missing


class ParamsStore:
    """The newest published versions. Thread-safety: one publisher, any readers.

    The store decides which version acts for slot sequence s. With `max_policy_lag` 0 or 1 it is exactly
    `max(0, s - max_policy_lag)`, independent of timing, which makes a run deterministic. With a larger lag it is the newest
    version, once that is at least `s - max_policy_lag`. Dropped sequences made no version and do not count in `s`.

    Args:
        max_policy_lag: largest policy lag; older versions are not stored.
    """

    def __init__(self, max_policy_lag: int) -> None:
        self._lag = max_policy_lag
        self._versions: OrderedDict[int, Params] = OrderedDict()
        self._changed = threading.Condition()
        self._dropped = 0

    def publish(self, version: int, params: Params) -> None:
        """Adds a version and removes those older than the maximum lag."""
        with self._changed:
            self._versions[version] = params
            while len(self._versions) > self._lag + 1:
                self._versions.popitem(last=False)
            self._changed.notify_all()

    def drop_sequence(self) -> None:
        """Counts a sequence that was released without an update."""
        with self._changed:
            self._dropped += 1
            self._changed.notify_all()

    def missing(self, sequence: int) -> str:
        """Names the missing parameters for this slot sequence; "" if none are missing."""
        with self._changed:
            if self._pick(sequence) is not None:
                return ""
            oldest = max(0, sequence - self._dropped - self._lag)
            return describe_missing(oldest, self._lag, next(reversed(self._versions), -1))

    def may_act(self, sequence: int) -> bool:
        """Returns whether the parameters for this slot sequence are published."""
        with self._changed:
            return self._pick(sequence) is not None

    def acting(self, sequence: int, timeout_seconds: float) -> tuple[int, Params] | None:
        """Returns the version that acts for this slot sequence and its parameters; None after `timeout_seconds` without them."""
        with self._changed:
            self._changed.wait_for(lambda: self._pick(sequence) is not None, timeout_seconds)
            version = self._pick(sequence)
            return None if version is None else (version, self._versions[version])

    def _pick(self, sequence: int) -> int | None:
        oldest = max(0, sequence - self._dropped - self._lag)
        if self._lag <= 1:
            return oldest if oldest in self._versions else None
        newest = next(reversed(self._versions), -1)
        return newest if newest >= oldest else None
