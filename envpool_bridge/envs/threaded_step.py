"""Steps of a worker's rows side by side, one thread each: for environments that wait rather than compute."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from envpool_bridge.errors import UserError, WorkerError

_LOOK_SECONDS = 1.0  # between looks at whether the threads live, while a step takes long
_JOIN_SECONDS = 5.0


class OverlappedSteps:
    """Calls one function a row, all of them at once, each row's always in the same thread.

    A wake-up must cost no more than the sleep that it overlaps. One write to an eventfd that counts down wakes all rows, where
    locks or queues take a system call each; and the threads keep to one core, since on two they would wake only to wait for the
    interpreter's lock, which triples the processor time of a step (docs/benchmarks).

    Thread-safety: called and closed by one thread.
    """

    def __init__(self, num_rows: int, core: int | None = None) -> None:
        """Starts the threads.

        Args:
            num_rows: R, functions of every call.
            core: that the threads keep to, counted among those this process may run on, and again from the first after the
                last; None leaves it to the kernel.

        Raises:
            UserError: the system allows no further threads.
        """
        allowed = sorted(os.sched_getaffinity(0))
        self._cores = allowed if core is None else [allowed[core % len(allowed)]]
        self._functions: Sequence[Callable[[Any], Any]] | None = ()  # None: the threads end
        self._arguments: Sequence[Any] = ()
        self._results: list[Any] = [None] * num_rows
        self._errors: dict[int, BaseException] = {}
        self._bells = [os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC) for _ in range(2)]
        self._calls = 0
        self._returned = count(1)
        self._all_returned = threading.Lock()
        self._all_returned.acquire()
        self._running = False
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

    def __call__(self, functions: Sequence[Callable[[Any], Any]], arguments: Sequence[Any]) -> Iterable[Any]:
        """`map(call, functions, arguments)`, but every function has been called when this returns.

        Args:
            functions: R of them.
            arguments: [R], one a function.

        Returns:
            The R results in order; an iterator that raises what the first failing function raised, in its place. Valid until
            the next call.

        Raises:
            WorkerError: the call before was interrupted, by a signal say; or a thread is gone, as at the interpreter's end.
            ValueError: it is closed.
        """
        if self._functions is None:
            raise ValueError("the rows are closed")
        if self._running:
            raise WorkerError(
                "the step before was interrupted, and rows may still be in it: make the environments anew"
            )
        self._running = True
        self._functions, self._arguments = functions, arguments
        self._wake()
        while not self._all_returned.acquire(timeout=_LOOK_SECONDS):
            if not all(thread.is_alive() for thread in self._threads):
                raise WorkerError("a thread that steps a row has ended while its step was awaited")
        self._running = False
        if not self._errors:
            return self._results
        errors, self._errors = self._errors, {}
        return self._in_order(errors)

    def close(self) -> None:
        """Ends the threads; idempotent. A thread whose function does not return is left behind after seconds."""
        if self._functions is None:
            return
        self._functions = None
        self._wake()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        if not any(thread.is_alive() for thread in self._threads):  # else it would read what the number means then
            for bell in self._bells:
                os.close(bell)

    def _wake(self) -> None:
        """One count for each thread. Bells take turns, so that a thread that is done early cannot take another's count."""
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
            if self._functions is None:
                return
            try:
                results[row] = self._functions[row](self._arguments[row])
            except BaseException as error:  # noqa: BLE001  whatever it is, it is raised where the step was asked for
                self._errors[row] = error
            if next(self._returned) % num_rows == 0:
                self._all_returned.release()

    def _in_order(self, errors: dict[int, BaseException]) -> Iterator[Any]:
        first = min(errors)
        yield from self._results[:first]
        raise errors[first]
