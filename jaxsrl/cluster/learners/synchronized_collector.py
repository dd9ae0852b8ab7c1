"""A collector of this process's rows that returns a trajectory only when every learner process has its own."""

import time
from collections.abc import Callable, Mapping, Sequence

from agents.api import Params
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import Tree
from jaxsrl.cluster.learners.stop_consensus import StopConsensus
from jaxsrl.collect.collector import Collector

_POLL_SECONDS = 1.0


class SynchronizedCollector:
    """A `Collector` of some rows of a run. `acquire` waits for the other processes, so that all make the same updates.

    Args:
        collector: Collector of this process's rows.
        consensus: Consensus of the processes.
        first_row: First row of this process.
        num_rows: Number of rows of the run.
        raise_failed: raises the failure of another process; called during the wait for own rows.
    """

    def __init__(
        self,
        collector: Collector,
        consensus: StopConsensus,
        first_row: int,
        num_rows: int,
        raise_failed: Callable[[], None],
    ) -> None:
        self._collector, self._consensus = collector, consensus
        self._first_row, self._num_rows = first_row, num_rows
        self._raise_failed, self._polled_at = raise_failed, time.monotonic()

    def publish(self, version: int, params: Params) -> None:
        self._collector.publish(version, params)

    def start(self, reset: EpisodeReset) -> None:
        """Starts to collect; `reset` is of this process's rows."""
        before, rows = self._first_row, len(reset.episodes)
        after = self._num_rows - before - rows
        # The collector looks its rows up by their index in the run.
        episodes = (*(0,) * before, *reset.episodes, *(0,) * after)
        actions = (*(None,) * before, *reset.actions, *(None,) * after)
        self._collector.start(EpisodeReset(episodes, actions))

    def acquire(self, timeout_seconds: float) -> int | None:
        """Returns the next full slot's sequence once every process has its own; None before, and when all stop.

        Raises:
            LostLearnerError: If a process did not come in time.
            FailedLearnerError: If a process failed.
        """
        sequence = self._collector.acquire(timeout_seconds)
        if sequence is None:
            if time.monotonic() - self._polled_at > _POLL_SECONDS:
                self._raise_failed()
                self._polled_at = time.monotonic()
            return None
        return sequence if self._consensus.should_continue() else None

    def slots(self, sequence: int) -> Sequence[SlotViews]:
        return self._collector.slots(sequence)

    def release(self, sequence: int) -> None:
        self._collector.release(sequence)

    def drop(self, sequence: int) -> None:
        """Raises RuntimeError: plans that drop trajectories are rejected."""
        raise RuntimeError("trajectories are not dropped where learner processes share them")

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        return self._collector.first_observation(should_stop)

    def totals(self) -> Mapping[str, float]:
        """Returns the totals of this process, with the seconds that it waited for the others."""
        return {**self._collector.totals(), "learner_process/barrier_wait_seconds": self._consensus.waited_seconds}

    def waits(self) -> Sequence[str]:
        return [
            *self._collector.waits(),
            f"the other learner processes were waited for {self._consensus.waited_seconds:.0f} s",
        ]

    def close(self) -> None:
        self._collector.close()
