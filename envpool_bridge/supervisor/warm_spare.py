"""A worker process that is ready before it is needed: what its environments import is imported, and it waits to be told who it is.

Most of a fresh worker's start is imports (CartPole: 58 of 62 ms), and the server that forks workers must not do them untried: a
library that starts threads as it is imported would break every fork after it. So a process forked ahead of time does, and the
next worker that has to be replaced is that process. If no thread came of it, and no jax, the server then imports the same modules,
and needs no spare any more. None of this happens before a worker has died for the first time.
"""

import contextlib
import importlib
import json
import os
import pickle
import socket
import sys
from collections.abc import Callable, Sequence

MAX_DESCRIPTORS = 16
_GO = b"go"
_MAX_MESSAGE_BYTES = 2**20
_NOT_BEFORE_A_FORK = frozenset({"jax", "jaxlib"})


class Spare:
    """The fork server's handle of a spare process. One thread, the server's.

    Attributes:
        modules: that it has imported and the server may; [] until it was handed over, or if one of them must not be.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        """Of a process that was forked, and the end of its socket that is ours."""
        self.pid = pid
        self._connection = connection
        self.modules: list[str] = []

    def hand_over(self, descriptors: Sequence[int]) -> bool:
        """Makes the process the worker that these descriptors are for; False if it is not ready, or dead."""
        try:
            ready = self._connection.recv(_MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            if not ready:
                return False
            self.modules = json.loads(ready)
            socket.send_fds(self._connection, [_GO], list(descriptors))
        except OSError:
            return False
        self._connection.close()
        return True

    def is_dead(self) -> bool:
        """Whether it has ended; if so, it is reaped."""
        with contextlib.suppress(ChildProcessError):
            done, _ = os.waitpid(self.pid, os.WNOHANG)
            return done != 0
        return True

    def close(self) -> None:
        """Lets go of the socket; the process ends when it notices. Idempotent."""
        self._connection.close()


def note_source(source: bytes, local_policy: bytes) -> int:
    """A descriptor of memory that says what to prepare for.

    Args:
        source: pickled EnvSource.
        local_policy: pickled MakeLocalPolicy; b"" without.
    """
    descriptor = os.memfd_create("what a spare worker prepares for")
    with open(os.dup(descriptor), "wb") as file:
        pickle.dump((source, local_policy), file)
    return descriptor


def import_all(modules: Sequence[str]) -> None:
    """Imports what a spare found harmless; what cannot be imported by its name is left to the workers."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _harmless(modules: list[str]) -> list[str]:
    threads = len(os.listdir("/proc/self/task"))
    loaded = {name.partition(".")[0] for name in sys.modules}
    return modules if threads == 1 and not loaded & _NOT_BEFORE_A_FORK else []


def prepare_and_wait(connection: socket.socket, note: int, main: Callable[[Sequence[int]], None]) -> None:
    """Body of a spare process: prepares, says so, and becomes the worker `main(descriptors)` when it is told to.

    Args:
        connection: to the fork server, which closes it to end the spare.
        note: of `note_source`.
        main: body of a worker.
    """
    size = os.fstat(note).st_size
    source, local_policy = pickle.loads(os.pread(note, size, 0))
    os.close(note)
    if local_policy:  # first, as in ActingWorker
        pickle.loads(local_policy)
    before = set(sys.modules)
    pickle.loads(source).spec()  # makes an environment: whatever that imports
    connection.send(json.dumps(_harmless([name for name in sys.modules if name not in before])).encode())
    # A spare waits as long as its pool lives: the end of the server ends the wait, and the kernel ends the process with the server.
    message, descriptors, _, _ = socket.recv_fds(connection, 16, MAX_DESCRIPTORS)
    connection.close()
    if message == _GO:
        main(descriptors)
