"""The parent's side of the worker processes: starts them, hears their messages and deaths, stops them."""

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import cloudpickle

from envpool_bridge.envs.function_name import function_name
from envpool_bridge.envs.protocol import EnvSource, ResetRequest
from envpool_bridge.errors import BadEnvOutputError, UserError, WorkerDiedError, WorkerError
from envpool_bridge.shm.doorbell import Doorbell
from envpool_bridge.supervisor.channel import Channel
from envpool_bridge.supervisor.exit_status import Circumstances, MemoryGroup, describe_exit, resident_bytes
from envpool_bridge.supervisor.forkserver import ForkServer
from envpool_bridge.supervisor.warm_spare import note_source
from envpool_bridge.worker.worker import STACK_SIGNAL, ErrorMessage, FailureMessage, InfosMessage, WorkerConfig

_LOG = logging.getLogger("envpool_bridge")
_STOP_SECONDS = 5.0
_SEND_SECONDS = 10
_STACK_SECONDS = 0.3
_MAX_STACK_BYTES = 20_000


def pickle_source(source: EnvSource) -> bytes:
    """Returns the source as bytes for the workers, which never import the user's script.

    What modules define travels by name. Lambdas, closures, and what the script or an interactive session defines travel by value,
    with the globals that they use.

    Raises:
        UserError: it cannot be sent to another process.
    """
    try:
        return cloudpickle.dumps(source)
    except Exception as error:  # of whatever the environment's globals are
        make_env: Any = getattr(source, "make_env", type(source))
        raise UserError(
            f"the environment of {function_name(make_env)} cannot be sent to worker processes ({type(error).__name__}: {error}): "
            "create what it uses inside the function or the environment's methods, or define it in a module"
        ) from error


class _Process:
    """One incarnation of a worker."""

    def __init__(self, pid: int, connection: Channel, oom_kills: int | None) -> None:
        self.pid, self.connection = pid, connection
        self.pidfd = os.pidfd_open(pid)  # -1 once closed
        self._lock = threading.Lock()  # a send in one thread may kill while another closes
        self.oom_kills_before = oom_kills
        self.rss_bytes: int | None = None
        self.error: ErrorMessage | None = None
        self.hung = ""  # why it was killed by us

    def send(self, message: object, what: str) -> None:
        """Sends a message; kills a worker that does not read it, for it may hold a part of it."""
        try:
            self.connection.send(message)
        except BlockingIOError:
            self.kill(f"it did not read {what} within {_SEND_SECONDS:g} s; it may have been stopped (SIGSTOP)")
        except OSError:
            pass  # it is dead, and its death will say why

    def kill(self, reason: str) -> None:
        self.hung = reason
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal; does nothing if the process has ended."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, number)

    def has_ended(self, timeout_seconds: float) -> bool:
        poll = select.poll()  # select.select takes no descriptor above 1,023
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_seconds) * 1e3))

    def has_stopped(self, deadline: float) -> bool:
        """Waits for the end of the process. Discards its messages: a worker that is blocked in a send cannot end."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.register(self.connection.descriptor, select.POLLIN)
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = [descriptor for descriptor, _ in poll.poll(left * 1e3)]
            if self.pidfd in ready or not left:
                return self.pidfd in ready
            if ready:
                self.connection.receive()
            if ready and self.connection.has_ended:
                poll.unregister(self.connection.descriptor)  # it would end every wait at once

    def close(self) -> None:
        self.connection.close()
        with self._lock:
            os.close(self.pidfd)
            self.pidfd = -1


class WorkerProcesses:
    """Owner of the worker processes. Thread-safety: `check` and `fail` from any thread; the rest from one at a time.

    Attributes:
        doorbells: one a worker; ring after posting actions or releasing a slot.
        infos: newest info message of each part.
        failed_descriptor: becomes readable with the first error, and stays so.
        messages_descriptor: readable while a worker's message, or a part of one, waits to be read by `check` or `hear`.
    """

    def __init__(self, num_workers: int, num_parts: int, env_id: str) -> None:
        """Starts the fork server, so that it is ready when `start` is called."""
        self._env_id = env_id
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self.doorbells = [Doorbell() for _ in range(num_workers)]
        self._failed = Doorbell()
        self.failed_descriptor = self._failed.descriptor
        # Where a worker writes its stack when it is asked to, or crashes.
        self._stacks = [os.memfd_create(f"stack of worker {worker}") for worker in range(num_workers)]
        self.infos: list[InfosMessage | None] = [None] * num_parts
        self._messages = select.epoll()
        self.messages_descriptor = self._messages.fileno()
        self._server = ForkServer()
        self._memory = MemoryGroup()
        self._processes: list[_Process | None] = [None] * num_workers
        self._stopping = False
        self._descriptors: list[int] = []

    @property
    def _pids(self) -> list[int]:
        return [process.pid for process in self._processes if process is not None]

    def share(self, segment: int, board: int, bells: Sequence[Doorbell], policy_descriptors: Sequence[int]) -> None:
        """Says what every worker is handed.

        Args:
            segment: descriptor of the shared memory.
            board: descriptor of the workers' board.
            bells: the doorbells of inference and of the learner.
            policy_descriptors: what the workers' local policies need.
        """
        self._descriptors = [segment, board, *(bell.descriptor for bell in bells), *policy_descriptors]

    def spawn(self, config: WorkerConfig) -> None:
        """Forks a worker, whose predecessor (if any) has been buried; returns before its environments are ready.

        Raises:
            BridgeError: the fork server is gone.
        """
        worker, (segment, *others) = config.worker, self._descriptors
        os.ftruncate(self._stacks[worker], 0)
        os.lseek(self._stacks[worker], 0, os.SEEK_SET)
        ours, theirs = socket.socketpair()
        with theirs:
            own = [theirs.fileno(), self.doorbells[worker].descriptor, self._stacks[worker]]
            pid = self._server.fork([segment, *own, *others])
        process = _Process(pid, Channel(ours, _SEND_SECONDS), self._memory.oom_kills())
        with self._lock:
            self._processes[worker] = process
            self._messages.register(process.connection.descriptor, select.EPOLLIN)
        process.send(config, "its configuration")

    def prepare_spare(self, config: WorkerConfig) -> None:
        """Has a process ready that the next `spawn` makes a worker; does nothing if there is one.

        Raises:
            BridgeError: the fork server is gone.
        """
        note = note_source(config.source, config.local_policy)
        try:
            self._server.prepare(note)
        finally:
            os.close(note)

    def pidfd(self, worker: int) -> int:
        """Readable once the worker is dead; -1 while there is none."""
        process = self._processes[worker]
        return -1 if process is None else process.pidfd

    def send_reset(self, worker: int, part: int, request: ResetRequest) -> None:
        """Sends what a posted RESET step of `part` asks for."""
        process = self._processes[worker]
        if process is not None:
            process.send((part, request), "a reset")

    def ring_all(self) -> None:
        """Wakes every worker."""
        for bell in self.doorbells:
            bell.ring()

    def check(self) -> None:
        """Takes in what the workers have said.

        Raises:
            WorkerError: an environment raised; the message ends with its original traceback.
            BadEnvOutputError: an environment returned what its spaces do not allow.
            WorkerDiedError: a worker ended without a word, once too often.
            QuorumError: too few rows are left.
        """
        with self._lock:
            self._hear_readable()
            if self._error is not None:
                raise self._error

    def hear(self) -> list[int]:
        """Takes in what the workers have said, and raises nothing.

        Returns:
            The workers that have said something, or a part of it.
        """
        with self._lock:
            return self._hear_readable()

    def fail(self, error: Exception) -> None:
        """Makes `check` raise this error, unless there is one already."""
        with self._lock:
            self._error = self._error or error
        self._failed.ring()

    def note_memory(self) -> None:
        """Remembers how much memory each worker uses."""
        for process in self._processes:
            if process is not None:
                process.rss_bytes = resident_bytes(process.pid) or process.rss_bytes

    def kill_hung(self, worker: int, reason: str) -> None:
        """Makes a worker tell its stack, and kills it; `reason` becomes part of what is said of its death."""
        process = self._processes[worker]
        if process is None:
            return
        process.hung = reason
        process.send_signal(STACK_SIGNAL)
        deadline, size = time.monotonic() + _STACK_SECONDS, 0
        while time.monotonic() < deadline:  # written piece by piece: it is whole when it stops growing
            process.has_ended(_STACK_SECONDS / 6)
            before, size = size, os.fstat(self._stacks[worker]).st_size
            if size and size == before:
                break
        process.send_signal(signal.SIGKILL)

    def bury(self, worker: int, in_step: bool) -> tuple[str, Exception]:
        """Hears a dead worker's last words and lets go of what it had.

        Returns:
            What happened, in words, and the error that this is if nothing can be done about it.
        """
        with self._lock:
            self._hear(worker)
            process, self._processes[worker] = self._processes[worker], None
            if process is None:
                raise RuntimeError(f"worker {worker} was buried twice")
            self._unregister(process)
        status = self._server.exit_status(process.pid)
        process.close()
        name = f"environment worker {worker} ({self._env_id}, pid {process.pid})"
        if process.error is not None:
            error = self._raised(worker, process.error)
            return str(error), error
        text = f"{name} died: {self._describe(process, status, in_step)}"
        if process.hung:
            text = f"{name} was killed: {process.hung}"
        stack = os.pread(self._stacks[worker], _MAX_STACK_BYTES, 0).decode(errors="replace")
        text += f"\n\nIn the worker:\n{stack}" if stack else ""
        return text, WorkerDiedError(text)

    def stop(self) -> None:
        """Ends all workers, whose stop flag is already set: asks, waits, kills. Idempotent."""
        with self._lock:  # from here on `check` and `hear` leave the descriptors alone
            if self._stopping:
                return
            self._stopping = True
        self.ring_all()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            if process is None:
                continue
            if not process.has_stopped(deadline):  # stuck inside an environment
                process.kill("it did not stop")
                process.has_ended(_STOP_SECONDS)
            process.close()
        self._messages.close()
        self._server.close()
        for bell in [*self.doorbells, self._failed]:
            bell.close()
        for stack in self._stacks:
            os.close(stack)

    def _hear_readable(self) -> list[int]:
        if self._stopping:
            return []
        readable = {descriptor for descriptor, _ in self._messages.poll(0)}
        if not readable:
            return []
        processes = enumerate(self._processes)
        workers = [worker for worker, process in processes if process and process.connection.descriptor in readable]
        for worker in workers:
            self._hear(worker)
        return workers

    def _unregister(self, process: _Process) -> None:
        with contextlib.suppress(FileNotFoundError):  # it is not registered any more
            self._messages.unregister(process.connection.descriptor)

    def _hear(self, worker: int) -> None:
        process = self._processes[worker]
        if process is None:
            return
        for message in process.connection.receive():
            if isinstance(message, InfosMessage):
                self.infos[message.part] = message
            elif isinstance(message, FailureMessage):
                _LOG.warning("environment worker %d: %s", worker, message.text)
            elif isinstance(message, ErrorMessage):
                process.error = message
        if process.connection.has_ended:  # else it would end every wait at once for as long as the process lives
            self._unregister(process)

    def _raised(self, worker: int, message: ErrorMessage) -> Exception:
        text = f"environment worker {worker} ({self._env_id}): {message.message}\n\nIn the worker:\n{message.traceback}"
        return BadEnvOutputError(text) if message.kind == "BadEnvOutputError" else WorkerError(text)

    def _describe(self, process: _Process, status: int | None, in_step: bool) -> str:
        if status is None:
            return "nobody knows how"
        kills, before = self._memory.oom_kills(), process.oom_kills_before
        known = None if kills is None or before is None else kills - before
        return describe_exit(status, Circumstances(in_step, process.rss_bytes, known, self._memory.limit_bytes()))
