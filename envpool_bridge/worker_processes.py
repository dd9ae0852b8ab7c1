"""The parent's side of the worker processes: starts them, hears their messages and deaths, stops them."""

import contextlib
import dataclasses
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from envpool_bridge.adapters.rows import EnvSource, ResetRequest
from envpool_bridge.doorbell import Doorbell
from envpool_bridge.errors import BadEnvOutputError, PoolClosedError, UserError, WorkerDiedError, WorkerError
from envpool_bridge.forkserver import ForkServer
from envpool_bridge.worker import ErrorMessage, InfosMessage, WorkerConfig

_STOP_SECONDS = 5.0


def pickle_source(source: EnvSource) -> tuple[bytes, str]:
    """The source as bytes for the workers, and the path of the user's script if it is defined there ("" if not).

    Raises:
        UserError: it cannot be sent to another process.
    """
    advice = "define the environment function at the top level of a module (no lambda, no nested function)"
    try:
        data = pickle.dumps(source)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(f"the environment cannot be sent to worker processes ({error}): {advice}") from error
    if b"__main__" not in data:
        return data, ""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        raise UserError(f"the environment is defined in an interactive session, where no worker can find it: {advice}")
    return data, os.path.abspath(path)


class WorkerProcesses:
    """Owner of the worker processes. Thread-safety: `check` may be called from any thread; the rest from the owner's.

    Attributes:
        doorbells: one a worker; ring after posting actions or releasing a slot.
        infos: newest info message of each part.
        infos_received: info messages received of each part.
    """

    def __init__(self, num_workers: int, num_parts: int, env_id: str) -> None:
        """Starts the fork server, so that it is ready when `start` is called."""
        self._env_id = env_id
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._closed = False
        self.doorbells = [Doorbell() for _ in range(num_workers)]
        self.infos: list[InfosMessage | None] = [None] * num_parts
        self.infos_received = [0] * num_parts
        self._server = ForkServer()
        self._pids: list[int] = []
        self._pidfds: list[int] = []
        self._connections: list[Connection] = []
        self._stopping = False

    def start(
        self,
        config: WorkerConfig,
        resets: Sequence[Sequence[ResetRequest]],
        segment: int,
        bells: Sequence[Doorbell],
        policy_descriptors: Sequence[int] = (),
    ) -> None:
        """Forks one worker for each entry of `resets`; returns before their environments are ready.

        Args:
            config: what all workers share; index and resets are filled in here.
            resets: for each worker, the first reset of each of its parts.
            segment: descriptor of the shared memory.
            bells: the doorbells of inference and of the learner.
            policy_descriptors: what the workers' local policies need.
        """
        shared = [*(bell.descriptor for bell in bells), *policy_descriptors]
        for worker, requests in enumerate(resets):
            ours, theirs = socket.socketpair()
            with theirs:
                descriptors = [segment, theirs.fileno(), self.doorbells[worker].descriptor]
                pid = self._server.fork(descriptors + shared)
            self._pids.append(pid)
            self._pidfds.append(os.pidfd_open(pid))
            connection = Connection(ours.detach())
            self._connections.append(connection)
            with contextlib.suppress(BrokenPipeError):  # died already: `check` will say why
                connection.send(dataclasses.replace(config, worker=worker, resets=tuple(requests)))

    def watched(self) -> tuple[int, ...]:
        """Descriptors that become readable when a worker says something or dies."""
        return (*(connection.fileno() for connection in self._connections), *self._pidfds)

    def send_reset(self, worker: int, part: int, request: ResetRequest) -> None:
        """Sends what a posted RESET step of `part` asks for."""
        with contextlib.suppress(BrokenPipeError):
            self._connections[worker].send((part, request))

    def ring_all(self) -> None:
        """Wakes every worker."""
        for bell in self.doorbells:
            bell.ring()

    def check(self) -> None:
        """Takes in what the workers have said.

        Raises:
            WorkerError: an environment raised; the message ends with its original traceback.
            BadEnvOutputError: an environment returned what its spaces do not allow.
            WorkerDiedError: a worker ended without a word.
        """
        with self._lock:
            if self._error is None and not self._stopping:
                self._hear()
            if self._error is not None:
                raise self._error

    def stop(self) -> None:
        """Ends all workers, whose stop flag is already set: asks, waits, kills. Idempotent."""
        if self._closed:
            return
        self._closed = self._stopping = True
        self.ring_all()
        deadline = time.monotonic() + _STOP_SECONDS
        for pid, pidfd in zip(self._pids, self._pidfds, strict=True):
            readable, _, _ = select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:  # stuck inside an environment; SIGTERM would not reach code that holds the GIL
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                select.select([pidfd], [], [], _STOP_SECONDS)
        for connection in self._connections:
            connection.close()
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._server.close()
        for bell in self.doorbells:
            bell.close()

    def _hear(self) -> None:
        for worker, connection in enumerate(self._connections):
            try:
                while connection.poll():
                    self._take(worker, connection.recv())
            except (EOFError, OSError):
                self._error = self._error or self._death(worker)
            if self._error is not None:
                return

    def _take(self, worker: int, message: InfosMessage | ErrorMessage) -> None:
        if isinstance(message, InfosMessage):
            self.infos[message.part] = message
            self.infos_received[message.part] += 1
            return
        text = f"environment worker {worker} ({self._env_id}): {message.message}\n\nIn the worker:\n{message.traceback}"
        self._error = BadEnvOutputError(text) if message.kind == "BadEnvOutputError" else WorkerError(text)

    def _death(self, worker: int) -> WorkerDiedError:
        if self._closed:
            raise PoolClosedError("the pool is closed")
        status = self._server.exit_status(self._pids[worker])
        how = "it closed its connection but still runs" if status is None else describe_exit(status)
        return WorkerDiedError(f"environment worker {worker} ({self._env_id}, pid {self._pids[worker]}) died: {how}")


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}: something in the environment called exit"
    number = -status
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    causes = {
        signal.SIGKILL: "killed from outside, often by the kernel for lack of memory (see dmesg)",
        signal.SIGSEGV: "a crash in native code of the environment",
        signal.SIGABRT: "native code of the environment aborted",
        signal.SIGBUS: "a memory page could not be provided",
    }
    return f"{name}: {causes.get(signal.Signals(number), 'ended by a signal')}" if number in causes else name
