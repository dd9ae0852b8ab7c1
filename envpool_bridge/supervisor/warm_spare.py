"""Pre-forked worker process with the environment's imports done; it blocks until it is assigned a worker index.

Most of a fresh worker's start is imports (CartPole: 58 of 62 ms). The server that forks workers must not import
libraries: one that starts threads on import would break every later fork, and a slow one would block them. The spare imports
them instead, and becomes the next worker that must be replaced. The first spare finds out which modules that takes by making an
environment; the later ones import these. All of this happens only after a worker has died for the first time.
"""

import contextlib
import importlib
import json
import os
import pickle
import socket
import sys
from collections.abc import Callable, Sequence

from envpool_bridge.envs.kept_modules import import_from
from envpool_bridge.worker.worker import WorkerConfig

MAX_DESCRIPTORS = 16
_GO = b"go"
_MAX_MESSAGE_BYTES = 2**20


class Spare:
    """The fork server's handle of a spare process. Single-threaded.

    Args:
        pid: process id of the forked process.
        connection: the server's end of its socket.

    Attributes:
        modules: modules that it has imported; [] before the hand-over.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self.modules: list[str] = []

    def hand_over(self, descriptors: Sequence[int]) -> bool:
        """Turns the process into the worker that these descriptors are for; returns False if it is not ready, or dead."""
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

    def close(self) -> None:
        """Closes the socket, which ends the process. Idempotent."""
        self._connection.close()


def note_source(config: WorkerConfig) -> int:
    """Writes the source and the policy to prepare for into new memory and returns its descriptor."""
    descriptor = os.memfd_create("source of a spare worker")
    with open(os.dup(descriptor), "wb") as file:
        pickle.dump((config.modules, config.source, config.local_policy), file)
    return descriptor


def prepare_and_wait(
    connection: socket.socket, note: int, modules: Sequence[str], main: Callable[[Sequence[int]], None]
) -> None:
    """Runs a spare process: imports, reports the modules, and becomes the worker `main(descriptors)` on request.

    Args:
        connection: Connection to the fork server, which closes it to end the spare.
        note: Note from `note_source`.
        modules: modules to import; [] to make an environment, for its imports.
        main: body of a worker.
    """
    size = os.fstat(note).st_size
    kept, source, local_policy = pickle.loads(os.pread(note, size, 0))
    os.close(note)
    import_from(kept)
    if local_policy:  # first, as in ActingWorker
        pickle.loads(local_policy)
    before = set(sys.modules)
    made = pickle.loads(source)
    for name in modules:
        with contextlib.suppress(Exception):  # not every module can be imported by name
            importlib.import_module(name)
    if not modules:
        made.spec()
    connection.send(json.dumps([*modules] or [name for name in sys.modules if name not in before]).encode())
    # The wait has no deadline: the end of the server ends it, and the kernel ends the process with the server.
    message, descriptors, _, _ = socket.recv_fds(connection, 16, MAX_DESCRIPTORS)
    connection.close()
    if message == _GO:
        main(descriptors)
