"""Joint start, stop and failure of threads: the first error stops all, and the main thread raises it."""

import atexit
import contextlib
import faulthandler
import functools
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, NoReturn, TypeVar

from envpool_bridge.errors import BadEnvOutputError, EnvPoolError, UserError
from envpool_bridge.supervisor.forkserver import STOP_SIGNALS
from jaxsrl.terminal.format import printable

_JOIN_SECONDS = 30.0
_UNREAD_SECONDS = 1.0
_SAME_SECONDS = 1.0  # repeats of a signal within this time are one request
_LOST = select.POLLERR | select.POLLHUP | select.POLLNVAL
_stuck: dict[threading.Thread, float] = {}  # of this process's runs, with the seconds that its end waits for them

T = TypeVar("T")


class Lifecycle:
    """Stop flag and first error, shared by the threads of a run.

    Attributes:
        stop_signal: name of the signal that stopped the run; "" without one.
    """

    def __init__(self) -> None:
        self.stop_signal = ""
        # No threading.Event: a signal's handler would wait forever for a lock that the code below it holds.
        self._is_stopped = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def should_stop(self) -> bool:
        """Returns whether threads must return."""
        return self._is_stopped

    def stop(self) -> None:
        """Requests threads to return."""
        self._is_stopped = True

    def start_thread(self, name: str, body: Callable[[], object]) -> None:
        """Runs `body` in a thread whose first exception stops the run."""

        def guarded() -> None:
            try:
                body()
            except BaseException as error:  # noqa: BLE001  raised again by raise_error, in the main thread
                if self._error is None:
                    self._error = error
                self._is_stopped = True

        # At exit, the interpreter waits for non-daemon threads without a deadline.
        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def raise_error(self) -> None:
        """Raises the first error of any thread."""
        if self._error is not None:
            raise self._error

    def join(self, timeout_seconds: float = _JOIN_SECONDS, *, failure: BaseException | None = None) -> None:
        """Stops the threads and waits for them.

        A thread stuck in native code cannot be stopped: the process then exits without it, with status 1 unless
        `exit_on_user_error` sets another.

        Args:
            timeout_seconds: limit for all threads together.
            failure: error that ended the run; it gets a note about a thread that did not return in time.

        Raises:
            TimeoutError: If a thread did not return in time, and there is no `failure`.
        """
        self._is_stopped = True
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread for thread in self._threads if thread.is_alive()]
        if not stuck:
            return
        exit_without(*stuck)
        problem = f"thread {', '.join(thread.name for thread in stuck)} did not stop within {timeout_seconds} s"
        if failure is None:
            raise TimeoutError(problem)
        failure.add_note(problem)


def call_in_thread(function: Callable[[], T], name: str) -> "Future[T]":
    """Calls a function in a thread that the end of this process does not wait for; returns its result to come."""
    result: Future[T] = Future()

    def body() -> None:
        try:
            result.set_result(function())
        except BaseException as error:  # noqa: BLE001  raised where the result is taken
            result.set_exception(error)

    threading.Thread(target=body, name=name, daemon=True).start()
    return result


def exit_without(*threads: threading.Thread, wait_seconds: float = 0.0) -> None:
    """Makes the end of this process skip Python's clean-up, which would remove objects that these threads use, if they still run.

    The process then ends with status 1, or that of `exit_on_user_error`.

    Args:
        *threads: daemon threads in native code.
        wait_seconds: longest wait for each at the end of the process; after an uncaught error there is none.
    """
    for thread in [thread for thread in _stuck if not thread.is_alive()]:
        del _stuck[thread]
    _stuck.update(dict.fromkeys(threads, wait_seconds))
    _at_exit(_end_without_stuck)


def _at_exit(function: Callable[..., None], *arguments: object) -> None:
    """Makes `function` the first that runs at the end of this process: handlers of libraries may wait for threads."""
    atexit.unregister(function)
    atexit.register(function, *arguments)


def _end_without_stuck(status: int = 1) -> None:
    """Ends the process with this status if threads still run; Python does not pass its own to handlers."""
    for thread, seconds in _stuck.items():
        thread.join(0.0 if hasattr(sys, "last_value") else seconds)  # Python stores an uncaught error there
    if any(thread.is_alive() for thread in _stuck):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


REQUEUE_STATUS = 75
"""Exit status after SIGUSR1, which schedulers send before preemption: EX_TEMPFAIL, "try again"."""


class RequeueError(EnvPoolError):
    """An error after which the same command resumes the run from its newest checkpoint. Exit status 75."""


class OtherProcessError(EnvPoolError):
    """An error that another process of the run has raised and shown; the same command may meet it again. Exit status 1."""


def exit_on_user_error(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `function` exit with one line on stderr for an error whose message says everything; see `error_status`.

    It exits without a line, with the status of SIGPIPE in shells, where its output is not read to the end (`| head`).
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with _flushed():
                return function(*args, **kwargs)
        except (UserError, BadEnvOutputError, RequeueError, OtherProcessError) as error:
            print(f"error: {printable(str(error))}", file=sys.stderr)  # noqa: T201
            _exit(error_status(error))
        except Exception as error:
            if isinstance(error, BrokenPipeError) and _is_lost(1):  # else it is of another pipe
                _drop_lost_output()  # Python would fail again at exit
                _exit(128 + signal.SIGPIPE)
            if not _has_joined_others():
                raise
            traceback.print_exc()
            _exit(1)

    return wrapped


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Writes the output of the block before the end of Python, which reports a lost reader with a traceback."""
    try:
        yield
    except SystemExit:  # of --help
        if sys.stdout is not None:
            sys.stdout.flush()
        raise
    if sys.stdout is not None:
        sys.stdout.flush()


def error_status(error: BaseException) -> int:
    """Returns the exit status of a process that an error ends."""
    if isinstance(error, UserError | BadEnvOutputError):
        return 2
    return REQUEUE_STATUS if isinstance(error, RequeueError) else 1


def _exit(status: int) -> NoReturn:
    """Exits; at once among learner processes, where jax's shutdown would wait for the others or be aborted with them."""
    if _has_joined_others():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    _at_exit(_end_without_stuck, status)
    sys.exit(status)


def _has_joined_others() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def exit_status(signal_name: str) -> int:
    """Returns the exit status of a process that this signal stopped: 128 + its number as in shells, or `REQUEUE_STATUS`."""
    return REQUEUE_STATUS if signal_name == "SIGUSR1" else 128 + signal.Signals[signal_name]


@contextlib.contextmanager
def stop_on_signals(requested: Callable[[str], None], timeout_seconds: float = 0.0) -> Iterator[None]:
    """Calls `requested(name)` once on SIGINT, SIGTERM, SIGHUP or SIGUSR1; a second signal exits the process at once.

    A repeat of the same signal within one second is ignored, because `timeout` and shells signal the process and its group.
    After a signal, output to a closed terminal or pipe is dropped.
    Only the main thread receives signals: in another thread nothing changes. An ignored SIGHUP (`nohup`) stays ignored.

    Args:
        requested: stops the run, or raises.
        timeout_seconds: Time after the signal until the process exits with the stacks of its threads on stderr;
            0 for never.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: tuple[int, float] | None = None
    timers: list[threading.Timer] = []

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        name, now = signal.Signals(number).name, time.monotonic()
        if first is not None:
            if number == first[0] and now - first[1] < _SAME_SECONDS:
                return
            os._exit(exit_status(name))  # the kernel kills the children with their parent
        first = number, now
        _drop_lost_output()
        if timeout_seconds:
            timer = threading.Timer(timeout_seconds, _leave, (name, timeout_seconds))
            timer.daemon = True
            timers.append(timer)
            timer.start()
        requested(name)

    numbers = STOP_SIGNALS - ({signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set())
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        if first is not None:
            _drop_lost_output()  # the same Ctrl-C may reach `tee` later than this process
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_now(signal_name: str) -> NoReturn:
    """Exits at once, without Python's clean-up, in which jax may crash if the signal interrupted a compilation."""
    with contextlib.suppress(Exception):  # the signal may have interrupted a print, or the terminal is closed
        sys.stdout.flush()
        os.write(2, f"stopped by {signal_name}\n".encode())
    os._exit(exit_status(signal_name))


def _drop_lost_output() -> None:
    """Redirects output to a closed terminal or pipe to /dev/null: otherwise the next print would raise and end the run."""
    for descriptor in (1, 2):
        if _is_lost(descriptor):
            nothing = os.open(os.devnull, os.O_WRONLY)
            if nothing != descriptor:  # the descriptor was closed
                os.dup2(nothing, descriptor)
                os.close(nothing)


def _is_lost(descriptor: int) -> bool:
    """Returns whether the reader of a pipe or terminal is gone, or the descriptor is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & _LOST for _, events in poll.poll(0))


def _leave(name: str, timeout_seconds: float) -> None:
    # stderr may be a pipe without a reader
    with contextlib.suppress(Exception), tempfile.TemporaryFile() as stacks:
        text = f"the run did not stop within {timeout_seconds:g} s of {name}; stacks of its threads:\n"
        os.write(stacks.fileno(), text.encode())
        faulthandler.dump_traceback(stacks)
        stacks.seek(0)
        _write_error(stacks.read())
    os._exit(exit_status(name))


def _write_error(text: bytes) -> None:
    """Writes to stderr until its reader takes nothing for a second: a write to a full pipe would wait forever."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    while text and poll.poll(_UNREAD_SECONDS * 1e3):  # a pipe that is ready takes PIPE_BUF bytes
        text = text[os.write(2, text[: select.PIPE_BUF]) :]
