"""Reports of ends that no Python code sees: Ray ends a process from C++, with status 1, when the raylet of its machine is lost."""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from envpool_bridge.supervisor.forkserver import STOP_SIGNALS
from jaxsrl.checkpoints.run_directory import append_line
from jaxsrl.machine.lifecycle import REQUEUE_STATUS

_PR_SET_PDEATHSIG = 1
_RAY_ENDED = (
    "Ray ended this process (its own lines above say what it saw): its raylet or head on this machine was killed or is lost. Look "
    "at the memory of this machine and at Ray's logs, and start Ray again; the same command resumes from the newest checkpoint"
)


@contextlib.contextmanager
def reported_end(log: Path) -> Iterator[None]:
    """Continues in a child process. Its parent stays here, passes on stop signals, reports an unusual end and ends with its status.

    An end with status 1 that is no Python error becomes status 75. Call it before jax has devices, and threads with them.

    Args:
        log: File to which the report is appended, unless its directory is missing.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of jax, which has no threads before it has devices
        child = os.fork()
    if child:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda received, _: os.kill(child, received))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)
        _end_like(child, reader, log)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(reader)
    try:
        yield
    finally:
        os.write(writer, b".")


def _end_like(child: int, reader: int, log: Path) -> NoReturn:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.set_blocking(reader, False)  # processes of the child may still hold the other end
    try:
        is_seen = bool(os.read(reader, 1))
    except BlockingIOError:
        is_seen = False
    if status == 1 and not is_seen:
        _report(_RAY_ENDED, log)
        status = REQUEUE_STATUS
    elif status < 0:
        _report(f"the run's process was ended by {signal.Signals(-status).name}", log)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _report(message: str, log: Path) -> None:
    with contextlib.suppress(OSError):
        print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201
    if log.parent.is_dir():
        append_line(log, f"ends: {message}")
