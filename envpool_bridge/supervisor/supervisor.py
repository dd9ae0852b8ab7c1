"""Supervisor of a pool's workers: detects deaths and hangs, restarts workers, disables those that keep failing.

It has its own thread, so neither a long update nor a long inference call delays it. The thread sleeps in poll() on the
workers' pidfds and costs nothing in normal operation.
"""

import dataclasses
import logging
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, monotonic_ns

from envpool_bridge.envs.fingerprint import hash_own_source, own_source
from envpool_bridge.envs.protocol import ResetRequest
from envpool_bridge.errors import TooManyFailedEnvsError, WorkerDiedError
from envpool_bridge.options import RestartBudget, SupervisorOptions
from envpool_bridge.shm.doorbell import Doorbell
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.worker_board import ProgressCounters, WorkerBoard
from envpool_bridge.supervisor.processes import WorkerProcesses
from envpool_bridge.worker.worker import WorkerConfig

_LOG = logging.getLogger("envpool_bridge")
_LOOK_SECONDS = 0.1  # between heartbeat checks
_MEMORY_SECONDS = 1.0  # between memory checks
_STALL_SECONDS = 1.0  # a longer gap between checks means that the whole run was stopped (Ctrl-Z)
_JOIN_SECONDS = 15.0
_SPARE_SECONDS = 0.2  # from a restart to the next spare, so that the worker starts first
_SOURCE_SECONDS = 60.0  # between checks of jaxsrl's files
_MAX_RECOVERIES = 10_000  # newest that are kept


@dataclasses.dataclass(frozen=True)
class SupervisionTotals:
    """Totals of a pool since its start.

    Attributes:
        restarts: number of worker restarts.
        hangs: number of workers that were killed because they made no progress.
        episodes_cut: number of episodes cut because a worker died or an environment failed.
        rows_disabled: number of rows whose environment is no longer stepped.
        recoveries: number of workers that died and whose successor has stepped.
        recovery_seconds: time from a detected death to the successor's first step, summed over recoveries.
        replayed_steps: number of environment steps that were replayed after a resume.
        outputs_repaired: number of outputs that environments did not return as declared (`OutputRules`).
    """

    restarts: int = 0
    hangs: int = 0
    episodes_cut: int = 0
    rows_disabled: int = 0
    recoveries: int = 0
    recovery_seconds: float = 0.0
    replayed_steps: int = 0
    outputs_repaired: int = 0


class _Watched:
    """State of one worker."""

    def __init__(self, parts: Sequence[int], budget: RestartBudget) -> None:
        self.parts, self.budget = parts, budget
        self.config: WorkerConfig | None = None
        self.disabled = False
        self.due: float | None = None  # time of its next start
        self.beat, self.beat_at_start, self.replayed = 0, 0, 0
        self.since: float | None = None  # start of the time without progress while a step is owed
        self.died_ns: int | None = None  # time of a detected death after which the rows have not stepped yet


class Supervisor:
    """Supervisor thread of a pool. Thread-safety: `totals` from any thread, the rest from the pool's owner.

    Args:
        workers: processes to watch.
        progress: counters of their parts.
        board: recovery data of the workers.
        shape: shape of the pool.
        options: restart limits and timeouts.
        wake: doorbells to ring when something may have changed.
        receive: whether to receive the workers' reports of failures they survived.
    """

    def __init__(
        self,
        workers: WorkerProcesses,
        progress: ProgressCounters,
        board: WorkerBoard,
        shape: PoolShape,
        options: SupervisorOptions,
        wake: Sequence[Doorbell],
        receive: bool,
    ) -> None:
        self._workers, self._progress, self._board = workers, progress, board
        self._shape, self._options, self._wake, self._receive = shape, options, wake, receive
        self._watched = [
            _Watched(
                shape.parts_of_worker(worker),
                RestartBudget(options.max_restarts, options.window_seconds, options.max_backoff_seconds),
            )
            for worker in range(shape.num_workers)
        ]
        self._hangs = 0
        self._memory_checked = self._turned = 0.0
        self._may_act: Callable[[int], bool] | None = None
        self._spare_due: float | None = None
        self._source, self._has_warned, self._source_checked = "", False, -_SOURCE_SECONDS
        self._recovery_seconds = 0.0
        self._recoveries = 0
        self._newest_recoveries: deque[float] = deque(maxlen=_MAX_RECOVERIES)
        self._last_failure = ""
        self._stop = Doorbell()
        self._stopping = False
        self._final: SupervisionTotals | None = None
        # A daemon thread: the workers die with the process anyway.
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(
        self,
        config: WorkerConfig,
        resets: Sequence[Sequence[ResetRequest]],
        may_act: Callable[[int], bool] | None = None,
    ) -> None:
        """Starts the workers from the calling thread, then watches them.

        Args:
            config: shared by all workers; index and resets are filled in here.
            resets: Resets for each worker, the first reset of each of its parts.
            may_act: Whether parameters for a slot sequence are available, for workers that act themselves.
        """
        self._may_act = may_act
        for worker, requests in enumerate(resets):
            watched = self._watched[worker]
            watched.config = dataclasses.replace(config, worker=worker, resets=tuple(requests))
            self._spawn(worker, watched)
        self._thread.start()

    def totals(self) -> SupervisionTotals:
        """Returns the totals so far, or those at `stop`."""
        if self._final is not None:
            return self._final
        restarts = sum(watched.budget.total for watched in self._watched)
        disabled = sum(self._rows_disabled(worker) for worker in range(len(self._watched)))
        cut = self._board.episodes_cut()
        replayed = sum(self._board.steps_replayed(worker) for worker in range(len(self._watched)))
        recoveries = self._recoveries, self._recovery_seconds
        return SupervisionTotals(
            restarts, self._hangs, cut, disabled, *recoveries, replayed, self._board.outputs_repaired()
        )

    def recovery_seconds(self) -> list[float]:
        """Returns the times from detected deaths to the successors' first steps, of the newest recoveries, oldest first."""
        return list(self._newest_recoveries)

    def stop(self) -> None:
        """Ends the supervision; later deaths of workers are ignored. Idempotent."""
        self._final = self.totals()
        self._stopping = True
        if self._thread.ident is not None and self._stop.descriptor >= 0:
            self._stop.ring()
            self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self._stop.close()

    def _run(self) -> None:
        try:
            if self._options.max_restarts:
                self._source = own_source()
            while not self._stopping:
                self._turn()
        except BaseException as error:  # noqa: BLE001  threads that wait for the workers must receive it
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
                self._handle_exit(workers[descriptor])
        now = monotonic()
        for worker, watched in enumerate(self._watched):
            if watched.due is not None and watched.due <= now:
                self._restart(worker, watched)
        self._check(now)

    def _sleep_seconds(self) -> float:
        now = monotonic()
        dues = [watched.due - now for watched in self._watched if watched.due is not None]
        return max(0.0, min([_LOOK_SECONDS, *dues]))

    def _check(self, now: float) -> None:
        if now - self._turned > _STALL_SECONDS:
            for watched in self._watched:
                watched.since = None  # the workers may have been stopped too
        self._turned = now
        for worker, watched in enumerate(self._watched):
            self._check_hang(worker, watched, now)
            self._check_recovery(worker, watched)
        if self._spare_due is not None and self._spare_due <= now and self._watched[0].config is not None:
            self._spare_due = None
            if now - self._source_checked > _SOURCE_SECONDS:
                self._source_checked = now
                self._warn_of_new_source()
            if self._options.keep_spare and not self._workers.lacked_memory:  # a spare may make an environment more
                self._workers.prepare_spare(self._watched[0].config)
        if now - self._memory_checked >= _MEMORY_SECONDS:
            self._memory_checked = now
            self._workers.record_memory()
            if self._receive:
                self._workers.receive()
            self._check_alive_fraction()

    def _check_hang(self, worker: int, watched: _Watched, now: float) -> None:
        beat, replayed = self._progress.beat(watched.parts), self._board.steps_replayed(worker)
        owes_step = any(self._progress.owes_step(part) for part in watched.parts)
        owes = owes_step or any(self._owes_action(part) for part in watched.parts)
        if (beat, replayed) != (watched.beat, watched.replayed) or not owes or watched.since is None:
            watched.beat, watched.replayed, watched.since = beat, replayed, now if owes else None
            if watched.config is not None and watched.config.resets and self._has_started(watched):
                watched.config = dataclasses.replace(watched.config, resets=())  # may hold many actions
            return
        starting = beat == watched.beat_at_start
        what = "its first observation" if starting else "a step" if owes_step else "an action of its own policy"
        setting = "start_timeout_seconds" if starting else "step_timeout_seconds"
        limit = getattr(self._options, setting)
        if now - watched.since > limit and self._workers.pidfd(worker) >= 0:
            if worker in self._workers.receive():  # it waited for its message to be read
                watched.since = now
                return
            self._hangs += 1
            self._workers.kill_hung(worker, f"it did not finish {what} within {limit:g} s ({setting})")
            watched.since = None

    def _owes_action(self, part: int) -> bool:
        if self._may_act is None:
            return False
        sequence = self._progress.awaits_action(part)
        return sequence is not None and self._may_act(sequence)

    def _check_recovery(self, worker: int, watched: _Watched) -> None:
        if watched.died_ns is None or self._board.stepped_ns(worker) <= watched.died_ns:
            return
        seconds = (self._board.stepped_ns(worker) - watched.died_ns) * 1e-9
        watched.died_ns = None
        self._recoveries += 1
        self._recovery_seconds += seconds
        self._newest_recoveries.append(seconds)
        _LOG.info("environment worker %d steps again, %.1f ms after its death was detected", worker, seconds * 1e3)

    def _handle_exit(self, worker: int) -> None:
        watched = self._watched[worker]
        self._check_recovery(worker, watched)
        if watched.died_ns is None and self._has_started(watched):
            watched.died_ns = monotonic_ns()
        in_step = any(self._progress.owes_step(part) for part in watched.parts)
        description, error = self._workers.reap(worker, in_step)
        self._ring()  # it may have died between publishing and ringing
        self._last_failure = description
        config, options = watched.config, self._options
        raised = not isinstance(error, WorkerDiedError) and options.bad_env_output == "raise"
        beat = self._progress.beat(watched.parts)
        # The start of a worker that replaces another may fail for a moment: a file server, a port that is still in use.
        starts_again = watched.budget.total > 0 and beat == watched.beat_at_start
        fails = config is None or config.options.run_seed is None or not options.max_restarts or watched.disabled
        if fails or (raised and not starts_again):
            self._workers.fail(error)
            return
        wait = watched.budget.grant(monotonic(), made_progress=beat > watched.beat_at_start + len(watched.parts))
        if wait is None and raised:
            self._workers.fail(error)
        elif wait is None:
            self._give_up(worker, watched, error)
        if wait is None:
            return
        _LOG.warning("%s\nIt is restarted (restart %d).", description, watched.budget.total)
        watched.due = monotonic() + wait

    def _give_up(self, worker: int, watched: _Watched, error: Exception) -> None:
        if not self._has_started(watched):  # there is no observation that its rows could repeat
            self._workers.fail(error)
            return
        watched.disabled = True
        rows = self._rows_disabled(worker)
        _LOG.error(
            "%s\nIt was restarted %d times within %g s, or as often in a row without a step: its %d rows are disabled "
            "and never valid again.",
            self._last_failure,
            self._options.max_restarts,
            self._options.window_seconds,
            rows,
        )
        self._check_alive_fraction()
        watched.due = monotonic()

    def _restart(self, worker: int, watched: _Watched) -> None:
        watched.due = None
        if watched.disabled and watched.config is not None:
            watched.config = dataclasses.replace(watched.config, disabled=True)
        self._spawn(worker, watched)
        self._ring()
        self._spare_due = monotonic() + _SPARE_SECONDS

    def _warn_of_new_source(self) -> None:
        if not self._has_warned and hash_own_source() != self._source:
            self._has_warned = True
            _LOG.warning(
                "jaxsrl's own files have changed since this process started: workers that replace others import some of them "
                "again; stop the run, and start it again with one version"
            )

    def _spawn(self, worker: int, watched: _Watched) -> None:
        if watched.config is None:
            raise RuntimeError("call start first")
        for part in watched.parts:
            self._progress.start_incarnation(part)
        watched.beat = watched.beat_at_start = self._progress.beat(watched.parts)
        watched.since = monotonic()
        self._workers.spawn(watched.config)

    def _check_alive_fraction(self) -> None:
        total = self._shape.num_rows
        alive = total - sum(self._rows_disabled(worker) for worker in range(len(self._watched)))
        needed = self._options.min_alive_fraction * total
        if alive < max(needed, 1):
            self._workers.fail(
                TooManyFailedEnvsError(
                    f"{alive} of {total} rows are left, expected at least {self._options.min_alive_fraction:.0%} "
                    f"(min_alive_fraction) and one. The others failed more than {self._options.max_restarts} times within "
                    f"{self._options.window_seconds:g} s or in a row. Fix the environment, or raise max_restarts. "
                    f"The last failure: {self._last_failure or 'see the log'}"
                )
            )

    def _rows_disabled(self, worker: int) -> int:
        if self._watched[worker].disabled:
            return len(self._watched[worker].parts) * self._shape.rows_per_part
        return self._board.rows_disabled(worker)

    def _has_started(self, watched: _Watched) -> bool:
        return all(self._progress.has_started(part) for part in watched.parts)

    def _ring(self) -> None:
        for bell in self._wake:
            bell.ring()
