"""Trajectories of this process's rows, handed over only when every learner process has its own."""

import time
from collections.abc import Callable, Mapping, Sequence

from agents.api import Params
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import Tree
from jaxsrl.cluster.learners.stop_agreement import Agreement
from jaxsrl.collect.collector import Collector

_LOOK_SECONDS = 1.0


class TogetherSource:
    """A source of some rows of a run, whose `acquire` meets the other processes: so all make the same updates."""

    def __init__(
        self,
        source: Collector,
        agreement: Agreement,
        first_row: int,
        num_rows: int,
        raise_failed: Callable[[], None],
    ) -> None:
        """Wraps `source`, whose rows begin at `first_row` of the run's `num_rows`.

        Args:
            source: of this process's rows.
            agreement: with the other processes.
            first_row: of this process.
            num_rows: of the run.
            raise_failed: raises what another process failed of; asked while this one waits for its own rows.
        """
        self._source, self._agreement = source, agreement
        self._first_row, self._num_rows = first_row, num_rows
        self._raise_failed, self._looked = raise_failed, time.monotonic()

    def publish(self, version: int, params: Params) -> None:
        """See `Collector`."""
        self._source.publish(version, params)

    def start(self, reset: EpisodeReset) -> None:
        """Begins to collect; `reset` is of this process's rows."""
        before, rows = self._first_row, len(reset.episodes)
        after = self._num_rows - before - rows
        # The source finds its rows by their place in the run.
        episodes = (*(0,) * before, *reset.episodes, *(0,) * after)
        actions = (*(None,) * before, *reset.actions, *(None,) * after)
        self._source.start(EpisodeReset(episodes, actions))

    def acquire(self, timeout_seconds: float) -> int | None:
        """The next full slot's sequence, once every process has its own; None before, and when all agreed to stop.

        Raises:
            LostLearnerError: a process did not come in time, or failed.
        """
        sequence = self._source.acquire(timeout_seconds)
        if sequence is None:
            if time.monotonic() - self._looked > _LOOK_SECONDS:
                self._raise_failed()
                self._looked = time.monotonic()
            return None
        return sequence if self._agreement.goes_on() else None

    def slots(self, sequence: int) -> Sequence[SlotViews]:
        """See `Collector`."""
        return self._source.slots(sequence)

    def release(self, sequence: int) -> None:
        """See `Collector`."""
        self._source.release(sequence)

    def drop(self, sequence: int) -> None:
        """Never asked for: plans that drop are refused."""
        raise RuntimeError("trajectories are not dropped where learner processes share them")

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        """See `Collector`."""
        return self._source.first_observation(should_stop)

    def totals(self) -> Mapping[str, float]:
        """Those of this process, and how long it has waited for the others."""
        return {**self._source.totals(), "processes/wait_seconds": self._agreement.waited_seconds}

    def waits(self) -> Sequence[str]:
        """See `Collector`."""
        return [
            *self._source.waits(),
            f"the other learner processes were waited for {self._agreement.waited_seconds:.0f} s",
        ]

    def close(self) -> None:
        """See `Collector`."""
        self._source.close()
