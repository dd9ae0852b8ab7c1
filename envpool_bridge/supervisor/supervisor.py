"""Watches a pool's workers: notices deaths and hangs, starts workers again, gives up on those that keep failing.

A thread of its own, so that neither a long update nor a long inference call delays it. It sleeps in poll() on the workers'
pidfds and costs nothing while all is well.
"""

import dataclasses
import logging
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, monotonic_ns

from envpool_bridge.envs.protocol import ResetRequest
from envpool_bridge.errors import QuorumError, WorkerDiedError
from envpool_bridge.options import RestartBudget, SupervisorOptions
from envpool_bridge.shm.doorbell import Doorbell
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.worker_board import Progress, WorkerBoard
from envpool_bridge.supervisor.processes import WorkerProcesses
from envpool_bridge.worker.worker import WorkerConfig

_LOG = logging.getLogger("envpool_bridge")
_LOOK_SECONDS = 0.1  # between looks at heartbeats
_MEMORY_SECONDS = 1.0  # between looks at memory
_STALL_SECONDS = 1.0  # between looks: whoever was stopped for so long (Ctrl-Z) was not alone
_JOIN_SECONDS = 15.0
_SPARE_SECONDS = 0.2  # after a restart, until the next spare is prepared: the worker comes first
_MAX_RECOVERIES = 10_000  # newest that are remembered


@dataclasses.dataclass(frozen=True)
class SupervisionTotals:
    """Of a pool, since its start.

    Attributes:
        restarts: of workers.
        hangs: workers that were killed because they did not get on.
        episodes_cut: because a worker died, or an environment failed.
        rows_disabled: whose environment is not stepped any more.
        recoveries: workers that died and whose successor has stepped.
        recovery_seconds: from a death that was seen to the successor's first step, summed over recoveries.
        replayed_steps: steps of environments that were replayed after a resume.
    """

    restarts: int = 0
    hangs: int = 0
    episodes_cut: int = 0
    rows_disabled: int = 0
    recoveries: int = 0
    recovery_seconds: float = 0.0
    replayed_steps: int = 0


class _Watched:
    """What is known of one worker."""

    def __init__(self, parts: Sequence[int], budget: RestartBudget) -> None:
        self.parts, self.budget = parts, budget
        self.config: WorkerConfig | None = None
        self.disabled = False
        self.due: float | None = None  # when it is to be started again
        self.beat, self.beat_at_start, self.replayed = 0, 0, 0
        self.since: float | None = None  # when the beat was seen to stand still though a step is owed
        self.died_ns: int | None = None  # when a death was seen after which the rows have not stepped yet


class Supervisor:
    """One thread a pool. Thread-safety: `totals` from any thread, the rest from the pool's owner."""

    def __init__(
        self,
        workers: WorkerProcesses,
        progress: Progress,
        board: WorkerBoard,
        shape: PoolShape,
        options: SupervisorOptions,
        wake: Sequence[Doorbell],
        hear: bool,
    ) -> None:
        """Prepares to watch.

        Args:
            workers: to watch.
            progress: of their parts.
            board: of the workers.
            shape: of the pool.
            options: what to put up with.
            wake: rung when something may have changed.
            hear: whether to take in what workers say of failures they survive.
        """
        self._workers, self._progress, self._board = workers, progress, board
        self._shape, self._options, self._wake, self._hear = shape, options, wake, hear
        self._watched = [
            _Watched(
                shape.parts_of_worker(worker),
                RestartBudget(options.max_restarts, options.window_seconds, options.max_backoff_seconds),
            )
            for worker in range(shape.num_workers)
        ]
        self._hangs = 0
        self._looked = self._turned = 0.0
        self._may_act: Callable[[int], bool] | None = None
        self._spare_due: float | None = None
        self._recovery_seconds = 0.0
        self._recoveries = 0
        self._newest_recoveries: deque[float] = deque(maxlen=_MAX_RECOVERIES)
        self._last_words = ""
        self._stop = Doorbell()
        self._stopping = False
        self._final: SupervisionTotals | None = None
        # Never waited for when the interpreter exits: the workers die with the process anyway.
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(
        self,
        config: WorkerConfig,
        resets: Sequence[Sequence[ResetRequest]],
        may_act: Callable[[int], bool] | None = None,
    ) -> None:
        """Starts the workers, from the calling thread, and watches them from then on.

        Args:
            config: what all workers share; index and resets are filled in here.
            resets: for each worker, the first reset of each of its parts.
            may_act: of workers that act themselves: whether parameters for a slot sequence are there.
        """
        self._may_act = may_act
        for worker, requests in enumerate(resets):
            watched = self._watched[worker]
            watched.config = dataclasses.replace(config, worker=worker, resets=tuple(requests))
            self._spawn(worker, watched)
        self._thread.start()

    def totals(self) -> SupervisionTotals:
        """What has happened so far, or until `stop`."""
        if self._final is not None:
            return self._final
        restarts = sum(watched.budget.total for watched in self._watched)
        disabled = sum(self._rows_disabled(worker) for worker in range(len(self._watched)))
        cut = self._board.episodes_cut()
        replayed = sum(self._board.steps_replayed(worker) for worker in range(len(self._watched)))
        return SupervisionTotals(
            restarts, self._hangs, cut, disabled, self._recoveries, self._recovery_seconds, replayed
        )

    def recovery_seconds(self) -> list[float]:
        """Of the newest recoveries: from a death that was seen to the successor's first step, the oldest first."""
        return list(self._newest_recoveries)

    def stop(self) -> None:
        """Ends the watch; workers may die unheard from now on. Idempotent."""
        self._final = self.totals()
        self._stopping = True
        if self._thread.ident is not None and self._stop.descriptor >= 0:
            self._stop.ring()
            self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self._stop.close()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:  # noqa: BLE001  whoever waits for the workers must learn of it
            if not self._stopping:
                self._workers.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._stop.descriptor, select.POLLIN)
        workers: dict[int, int] = {}
        for worker in range(len(self._watched)):
            descriptor = self._workers.pidfd(worker)
            if descriptor >= 0:
                workers[descriptor] = worker
                poll.register(descriptor, select.POLLIN)
        ready = poll.poll(self._sleep_seconds() * 1e3)
        if self._stopping:
            return
        for descriptor, _ in ready:
            if descriptor in workers:
                self._bury(workers[descriptor])
        now = monotonic()
        for worker, watched in enumerate(self._watched):
            if watched.due is not None and watched.due <= now:
                self._restart(worker, watched)
        self._look(now)

    def _sleep_seconds(self) -> float:
        now = monotonic()
        dues = [watched.due - now for watched in self._watched if watched.due is not None]
        return max(0.0, min([_LOOK_SECONDS, *dues]))

    def _look(self, now: float) -> None:
        if now - self._turned > _STALL_SECONDS:
            for watched in self._watched:
                watched.since = None  # the workers may have had no time either
        self._turned = now
        for worker, watched in enumerate(self._watched):
            self._look_for_hang(worker, watched, now)
            self._look_for_recovery(worker, watched)
        if self._spare_due is not None and self._spare_due <= now and self._watched[0].config is not None:
            self._spare_due = None
            self._workers.prepare_spare(self._watched[0].config)
        if now - self._looked >= _MEMORY_SECONDS:
            self._looked = now
            self._workers.note_memory()
            if self._hear:
                self._workers.hear()
            self._require_quorum()

    def _look_for_hang(self, worker: int, watched: _Watched, now: float) -> None:
        beat, replayed = self._progress.beat(watched.parts), self._board.steps_replayed(worker)
        owes_step = any(self._progress.owes_step(part) for part in watched.parts)
        owes = owes_step or any(self._owes_action(part) for part in watched.parts)
        if (beat, replayed) != (watched.beat, watched.replayed) or not owes or watched.since is None:
            watched.beat, watched.replayed, watched.since = beat, replayed, now if owes else None
            if watched.config is not None and watched.config.resets and self._has_begun(watched):
                watched.config = dataclasses.replace(watched.config, resets=())  # may hold many actions
            return
        starting = beat == watched.beat_at_start
        what = "its first observation" if starting else "a step" if owes_step else "an action of its own policy"
        setting = "start_timeout_seconds" if starting else "step_timeout_seconds"
        limit = getattr(self._options, setting)
        if now - watched.since > limit and self._workers.pidfd(worker) >= 0:
            if worker in self._workers.hear():  # it waited for its message to be read
                watched.since = now
                return
            self._hangs += 1
            self._workers.kill_hung(worker, f"it was not done with {what} after {limit:g} s ({setting})")
            watched.since = None

    def _owes_action(self, part: int) -> bool:
        if self._may_act is None:
            return False
        sequence = self._progress.awaits_action(part)
        return sequence is not None and self._may_act(sequence)

    def _look_for_recovery(self, worker: int, watched: _Watched) -> None:
        if watched.died_ns is None or self._board.stepped_ns(worker) <= watched.died_ns:
            return
        seconds = (self._board.stepped_ns(worker) - watched.died_ns) * 1e-9
        watched.died_ns = None
        self._recoveries += 1
        self._recovery_seconds += seconds
        self._newest_recoveries.append(seconds)
        _LOG.info("environment worker %d steps again, %.1f ms after its death was seen", worker, seconds * 1e3)

    def _bury(self, worker: int) -> None:
        watched = self._watched[worker]
        self._look_for_recovery(worker, watched)
        if watched.died_ns is None and self._has_begun(watched):
            watched.died_ns = monotonic_ns()
        in_step = any(self._progress.owes_step(part) for part in watched.parts)
        words, error = self._workers.bury(worker, in_step)
        self._ring()  # it may have died between publishing and ringing
        self._last_words = words
        config, options = watched.config, self._options
        raised = not isinstance(error, WorkerDiedError) and options.bad_env_output == "raise"
        if config is None or config.run_seed is None or not options.max_restarts or raised or watched.disabled:
            self._workers.fail(error)
            return
        got_on = self._progress.beat(watched.parts) > watched.beat_at_start + len(watched.parts)
        wait = watched.budget.grant(monotonic(), got_on)
        if wait is None:
            self._give_up(worker, watched, error)
            return
        _LOG.warning("%s\nIt is started again (restart %d).", words, watched.budget.total)
        watched.due = monotonic() + wait

    def _give_up(self, worker: int, watched: _Watched, error: Exception) -> None:
        if not self._has_begun(watched):  # there is nothing that its rows could show
            self._workers.fail(error)
            return
        watched.disabled = True
        rows = self._rows_disabled(worker)
        _LOG.error(
            "%s\nIt was started again %d times within %g s, or as often in a row without a step: its %d rows are given up, "
            "and are never valid again.",
            self._last_words,
            self._options.max_restarts,
            self._options.window_seconds,
            rows,
        )
        self._require_quorum()
        watched.due = monotonic()

    def _restart(self, worker: int, watched: _Watched) -> None:
        watched.due = None
        if watched.disabled and watched.config is not None:
            watched.config = dataclasses.replace(watched.config, disabled=True)
        self._spawn(worker, watched)
        self._ring()
        if self._options.keep_spare:
            self._spare_due = monotonic() + _SPARE_SECONDS

    def _spawn(self, worker: int, watched: _Watched) -> None:
        if watched.config is None:
            raise RuntimeError("start comes first")
        for part in watched.parts:
            self._progress.begin_incarnation(part)
        watched.beat = watched.beat_at_start = self._progress.beat(watched.parts)
        watched.since = monotonic()
        self._workers.spawn(watched.config)

    def _require_quorum(self) -> None:
        total = self._shape.num_rows
        alive = total - sum(self._rows_disabled(worker) for worker in range(len(self._watched)))
        needed = self._options.min_alive_fraction * total
        if alive < max(needed, 1):
            self._workers.fail(
                QuorumError(
                    f"{alive} of {total} rows are left, expected at least {self._options.min_alive_fraction:.0%} "
                    f"(min_alive_fraction) and one: the others failed more than {self._options.max_restarts} times within "
                    f"{self._options.window_seconds:g} s or in a row; mend the environment, or raise max_restarts. "
                    f"The last failure: {self._last_words or 'see the log'}"
                )
            )

    def _rows_disabled(self, worker: int) -> int:
        if self._watched[worker].disabled:
            return len(self._watched[worker].parts) * self._shape.rows_per_part
        return self._board.rows_disabled(worker)

    def _has_begun(self, watched: _Watched) -> bool:
        return all(self._progress.has_begun(part) for part in watched.parts)

    def _ring(self) -> None:
        for bell in self._wake:
            bell.ring()
