"""Published parameters by version, in one process. Newest wins; the learner never waits for a reader."""

import threading
from collections import OrderedDict

from agents.api import Params
from jaxsrl.collect.params.shared_memory import describe_missing


class ParamsStore:
    """The last few published versions. Thread-safety: one publisher, any readers.

    Which version acts for slot sequence s is decided here: with `max_policy_lag` 0 or 1 it is exactly
    `max(0, s - max_policy_lag)`, whatever the timing, which makes a run deterministic; from 2 on it is the newest one, as soon
    as that is at least `s - max_policy_lag`. Sequences that were dropped, and so made no version, do not count in `s`.
    """

    def __init__(self, max_policy_lag: int) -> None:
        """An empty store that keeps the versions this lag can ask for."""
        self._lag = max_policy_lag
        self._versions: OrderedDict[int, Params] = OrderedDict()
        self._changed = threading.Condition()
        self._dropped = 0

    def publish(self, version: int, params: Params) -> None:
        """Adds a version and drops those that nobody can ask for any more."""
        with self._changed:
            self._versions[version] = params
            while len(self._versions) > self._lag + 1:
                self._versions.popitem(last=False)
            self._changed.notify_all()

    def drop_sequence(self) -> None:
        """A sequence was given back without an update."""
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
        """Whether parameters for this slot sequence are there."""
        with self._changed:
            return self._pick(sequence) is not None

    def acting(self, sequence: int, timeout_seconds: float) -> tuple[int, Params] | None:
        """(version, params) that act for this slot sequence; None if they have not come within `timeout_seconds`."""
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
