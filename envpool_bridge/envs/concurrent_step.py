"""Concurrent steps of a worker's rows, for environments that wait for something outside (a game's server, a robot).

`AsyncStep` starts the steps of all rows before it waits for the first. Their environments offer, next to `step`,
`step_async(action) -> None` and `step_wait() -> (observation, reward, terminated, truncated, info)`, the names that vector
environments use. `ThreadedStep` needs a thread per row instead, and with it a wake-up per row.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from typing import Any, NamedTuple, NoReturn

import gymnasium

from envpool_bridge.errors import UserError, WorkerError

_LOOK_SECONDS = 1.0  # between checks that the threads live, while a step takes long
_JOIN_SECONDS = 5.0

StepFn = Callable[[Any], Any]


class Halves(NamedTuple):
    """An environment's `step_async` and `step_wait`."""

    start: StepFn
    wait: Callable[[], Any]


def find_halves(env: gymnasium.Env) -> Halves | None:
    """Returns the two halves of the environment's step; None if it has none that give the same as `step`.

    A wrapper, or a class derived from the one with the halves, may define `step` alone. The inner halves would skip what it adds.
    So both must be defined where `step` is, or in a class derived from it. A class or an object disables them with None.
    """
    start, wait = getattr(env, "step_async", None), getattr(env, "step_wait", None)
    if "step" in vars(env) or not (callable(start) and callable(wait)):
        return None
    kinds = type(env).__mro__
    step, *halves = (
        next((place for place, kind in enumerate(kinds) if name in vars(kind)), len(kinds))
        for name in ("step", "step_async", "step_wait")
    )
    return Halves(start, wait) if max(halves) <= step < len(kinds) else None


def make_concurrent_step(
    envs: Sequence[gymnasium.Env], steps: Sequence[StepFn], use_threads: bool = False, core: int | None = None
) -> "ConcurrentStep | None":
    """Returns an `AsyncStep` if all environments have halves, else a `ThreadedStep` if allowed; None for a loop over the rows.

    Args:
        envs: one per row. A single row has no other to wait with.
        steps: the rows' step functions, as `AsyncStep` takes them.
        use_threads: whether to start threads for environments without halves.
        core: Core of the threads, as `ThreadedStep` takes it.

    Raises:
        UserError: If the system allows no further threads.
    """
    if len(envs) < 2:
        return None
    halves = [pair for pair in map(find_halves, envs) if pair is not None]
    if len(halves) == len(envs):
        return AsyncStep(steps, halves)
    return ThreadedStep(len(envs), core) if use_threads else None


class ConcurrentStep:
    """Calls one function per row, all at the same time. Base of two executors. Thread-safety: called and closed by one thread.

    Attributes:
        failed_call: "step_async", "step_wait" or "reset", which raised last; "" if the executor does not know.
    """

    def __init__(self, num_rows: int) -> None:
        self.failed_call = ""
        self._results: list[Any] = [None] * num_rows
        self._errors: dict[int, BaseException] = {}  # by row
        self._running = self._closed = False

    def __call__(self, functions: Sequence[StepFn], arguments: Sequence[Any]) -> Iterable[Any]:
        """Calls every function before it returns, as `map(call, functions, arguments)` would one after another.

        Args:
            functions: R of them.
            arguments: [R], one per function.

        Returns:
            The R results in order, valid until the next call. The iterator raises the error of the first row that failed, in its
            place. A row's StopIteration therefore ends it, as it ends a `map`.

        Raises:
            WorkerError: If the call before was interrupted, for example by a signal; or a thread has ended.
            ValueError: If it is closed.
        """
        if self._closed:
            raise ValueError("the rows are closed")
        if self._running:
            raise WorkerError("the step before was interrupted, and rows may still be in it: make new environments")
        self._running = True
        self._call_all(functions, arguments)
        self._running = False
        return self._up_to_error() if self._errors else self._results

    def close(self) -> None:
        """Releases what the executor holds; idempotent."""
        self._closed = True

    def _call_all(self, functions: Sequence[StepFn], arguments: Sequence[Any]) -> None:
        raise NotImplementedError

    def _up_to_error(self) -> Iterable[Any]:
        errors, self._errors = self._errors, {}
        first = min(errors)
        # A generator would turn a StopIteration into a RuntimeError.
        return chain(self._results[:first], map(_raise, [errors[first]]))


def _raise(error: BaseException) -> NoReturn:
    raise error


class AsyncStep(ConcurrentStep):
    """Starts all steps in the order of rows, then makes the other calls (resets), then waits for the steps in the same order.

    No step is left half made: after an error, the other steps that were started are still waited for. Only what is no `Exception`
    (a KeyboardInterrupt) is raised at once.

    Args:
        steps: R functions. Where a call's functions hold one of these objects, its halves are called instead.
        halves: R of them, of rows that are not in a step.
    """

    def __init__(self, steps: Sequence[StepFn], halves: Sequence[Halves]) -> None:
        super().__init__(len(steps))
        self._steps = list(steps)
        self._starts = [start for start, _ in halves]
        self._waits = [wait for _, wait in halves]

    def _call_all(self, functions: Sequence[StepFn], arguments: Sequence[Any]) -> None:
        steps = self._steps
        rows = [row for row, function in enumerate(functions) if function is steps[row]]
        num_started = self._start(rows, arguments)
        if len(rows) < len(functions):
            self._call_others(functions, arguments)
        self._wait(rows[:num_started])

    def _start(self, rows: list[int], arguments: Sequence[Any]) -> int:
        """Returns the number of started steps: all, or those before the one that raised."""
        starts, row = self._starts, -1
        try:
            for row in rows:
                if starts[row](arguments[row]) is not None:
                    raise TypeError("step_async must return None: what the step gives is step_wait's to return")
        except Exception as error:  # noqa: BLE001  raised in the row's place
            self._fail(row, "step_async", error)
            return rows.index(row)
        return len(rows)

    def _call_others(self, functions: Sequence[StepFn], arguments: Sequence[Any]) -> None:
        """Calls the functions that are no steps, of the rows before the first that failed."""
        for row in range(min(self._errors, default=len(functions))):
            if functions[row] is not self._steps[row]:
                try:
                    self._results[row] = functions[row](arguments[row])
                except Exception as error:  # noqa: BLE001  raised in the row's place
                    self._fail(row, "reset", error)
                    return

    def _wait(self, rows: list[int]) -> None:
        results, waits = self._results, self._waits
        for row in rows:
            try:
                results[row] = waits[row]()
            except Exception as error:  # noqa: BLE001  raised in the row's place
                if row < min(self._errors, default=len(results)):
                    self._fail(row, "step_wait", error)

    def _fail(self, row: int, call: str, error: Exception) -> None:
        self.failed_call = call
        self._errors[row] = error


class ThreadedStep(ConcurrentStep):
    """Calls all functions at once, each row's always in the same thread.

    A wake-up must cost no more than the wait that it overlaps. One write to an eventfd that counts down wakes all rows, where
    locks or queues take a system call each. The threads keep to one core: on two they would wake only to wait for the
    interpreter's lock, which triples the processor time of a step (docs/benchmarks).

    Args:
        num_rows: R, functions of every call.
        core: Core of the threads, an index modulo the number of cores that this process may run on; None for any core.

    Raises:
        UserError: If the system allows no further threads.
    """

    def __init__(self, num_rows: int, core: int | None = None) -> None:
        super().__init__(num_rows)
        allowed = sorted(os.sched_getaffinity(0))
        self._cores = allowed if core is None else [allowed[core % len(allowed)]]
        self._functions: Sequence[StepFn] = ()
        self._arguments: Sequence[Any] = ()
        self._bells = [os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC) for _ in range(2)]
        self._calls = 0
        self._returned = count(1)
        self._all_returned = threading.Lock()
        self._all_returned.acquire()
        self._threads: list[threading.Thread] = []
        try:
            for row in range(num_rows):
                thread = threading.Thread(target=self._serve, args=(row,), name=f"row {row}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.close()
            raise UserError(
                f"overlap_rows needs {num_rows} threads in a worker, and the system allowed {len(self._threads)} ({error}): "
                "use fewer rows a worker, or raise the limit of processes (ulimit -u)"
            ) from error

    def close(self) -> None:
        """Ends the threads; idempotent. A thread whose function does not return is abandoned after seconds."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        # A thread that lives would read from another file that gets the same descriptor later.
        if not any(thread.is_alive() for thread in self._threads):
            for bell in self._bells:
                os.close(bell)

    def _call_all(self, functions: Sequence[StepFn], arguments: Sequence[Any]) -> None:
        self._functions, self._arguments = functions, arguments
        self._wake()
        while not self._all_returned.acquire(timeout=_LOOK_SECONDS):
            if not all(thread.is_alive() for thread in self._threads):
                raise WorkerError("a thread that steps a row has ended while its step was awaited")

    def _wake(self) -> None:
        """Adds one count per thread. Bells take turns, so that a thread that is done early cannot take another's count."""
        if self._threads:
            os.eventfd_write(self._bells[self._calls % 2], len(self._threads))
        self._calls += 1

    def _serve(self, row: int) -> None:
        os.sched_setaffinity(0, self._cores)  # of this thread alone
        listen, bell, other = os.eventfd_read, *self._bells
        results, num_rows = self._results, len(self._results)
        while True:
            listen(bell)
            bell, other = other, bell
            if self._closed:
                return
            try:
                results[row] = self._functions[row](self._arguments[row])
            except BaseException as error:  # noqa: BLE001  raised where the step was asked for
                self._errors[row] = error
            if next(self._returned) % num_rows == 0:
                self._all_returned.release()
