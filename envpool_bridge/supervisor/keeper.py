"""Parent of one worker process, which ends whatever the worker leaves behind.

Programs that environments start do not end with their worker. The kernel gives a process whose parent ends to its nearest ancestor
that asks for such processes (PR_SET_CHILD_SUBREAPER): to the keeper, whatever group or session the process is in. After the end of
its worker a keeper kills its children until it has none. After the end of the fork server it first kills the worker.

Each keeper is a process group of its own, so SIGKILL of the workers' group leaves it to clean up. If it is killed itself, the
kernel kills its worker, and the fork server has the worker's children.
"""

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
END_SIGNAL = signal.SIGRTMIN + 2
"""Signal that makes a keeper end its worker."""
_SIGNALS = frozenset({signal.SIGCHLD, END_SIGNAL})
_END_SECONDS = 5.0  # a killed process that waits for a disk ends later


def kill_on_parent_exit(parent: int) -> None:
    """Requests SIGKILL from the kernel when the parent's starting thread ends; exits now if it already has."""
    _signal_on_parent_exit(parent, signal.SIGKILL)


def adopt_descendants() -> None:
    """Makes this process the parent of its descendants whose own parent ends."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)


def fork_kept(body: Callable[[], NoReturn]) -> tuple[int, int]:
    """Forks a keeper, which forks a worker that calls `body`. Call it in a process with one thread.

    Returns:
        The process ids of the keeper and of the worker. The exit status of the keeper will be that of the worker.

    Raises:
        OSError: there is no room for another process.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    try:
        keeper = os.fork()
        if keeper == 0:
            try:
                _keep(parent, (reader, writer), body)
            finally:
                os._exit(1)
    finally:
        os.close(writer)
        answer = os.read(reader, 32)  # b"" after the end of the keeper
        os.close(reader)
    if not answer:
        raise BlockingIOError("the process of a worker could not be forked")
    return keeper, int(answer)


def reap() -> dict[int, int]:
    """Returns the exit statuses, as `os.waitpid` gives them, of the children that have ended, by process id."""
    statuses: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def end_children(spared: Collection[int] = ()) -> dict[int, int]:
    """Kills the children of this process, and what they leave, until there are none but those that are spared; see `reap`."""
    statuses, deadline = reap(), time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        others = _children() - {*spared}
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if others:
            time.sleep(0.001)
        ended = reap()
        statuses |= ended
        if not others and not ended:  # the list may lack some while others end
            break
    return statuses


def _keep(server: int, pipe: tuple[int, int], body: Callable[[], NoReturn]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    adopt_descendants()
    _signal_on_parent_exit(server, END_SIGNAL)
    own, group = os.getpid(), os.getpgrp()
    os.setpgid(0, 0)
    worker = os.fork()
    if worker == 0:
        os.setpgid(0, group)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        kill_on_parent_exit(own)
        for descriptor in pipe:
            os.close(descriptor)
        body()
    os.write(pipe[1], str(worker).encode())
    os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))  # the worker's connection ends with the worker
    status = None
    while status is None:
        if signal.sigwait(_SIGNALS) == END_SIGNAL:
            os.kill(worker, signal.SIGKILL)
        status = reap().get(worker)
    end_children()
    _end_as(status)


def _end_as(status: int) -> NoReturn:
    """Ends this process with the exit status of another one."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no other action
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)


def _children() -> set[int]:
    own = os.getpid()
    try:
        return {int(pid) for pid in Path(f"/proc/self/task/{own}/children").read_text().split()}
    except OSError:  # a kernel without this file
        children = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == own:
                children.add(int(stat.parent.name))
    return children


def _signal_on_parent_exit(parent: int, number: int) -> None:
    _control(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(1)


def _control(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")
