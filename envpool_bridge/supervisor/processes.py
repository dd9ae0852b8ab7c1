"""Parent's side of the worker processes: starts them, receives their messages, detects their exits and stops them."""

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from envpool_bridge.envs.function_name import function_name
from envpool_bridge.envs.protocol import EnvSource, ResetRequest
from envpool_bridge.envs.suites.registry import dumps_with_registrations
from envpool_bridge.errors import BadEnvOutputError, UserError, WorkerDiedError, WorkerError
from envpool_bridge.shm.doorbell import MAX_POLL_MILLISECONDS, Doorbell
from envpool_bridge.supervisor.channel import WorkerChannel
from envpool_bridge.supervisor.exit_status import CgroupMemory, ExitContext, describe_exit, resident_bytes
from envpool_bridge.supervisor.forkserver import ForkServer
from envpool_bridge.supervisor.warm_spare import note_source
from envpool_bridge.worker.worker import STACK_SIGNAL, ErrorMessage, FailureMessage, InfosMessage, WorkerConfig

_LOG = logging.getLogger("envpool_bridge")
STOP_SECONDS = 5.0
_SEND_SECONDS = 10
_STACK_SECONDS = 0.3
_MAX_STACK_BYTES = 20_000


def pickle_source(source: EnvSource) -> bytes:
    """Returns the source as bytes for the workers, which never import the user's script.

    Definitions of modules are sent by name. Lambdas, closures, and definitions of the script or an interactive session
    are sent by value, with the globals that they use. Registrations of environments are sent along.

    Raises:
        UserError: If it cannot be sent to another process.
    """
    try:
        return dumps_with_registrations(source)
    except Exception as error:  # raised by pickling the environment's globals
        make_env: Any = getattr(source, "make_env", type(source))
        raise UserError(
            f"the environment of {function_name(make_env)} cannot be sent to worker processes ({type(error).__name__}: {error}): "
            "create what it uses inside the function or the environment's methods, or define it in a module"
        ) from error


class _Process:
    """One incarnation of a worker."""

    def __init__(self, pid: int, connection: WorkerChannel, oom_kills: int | None) -> None:
        self.pid, self.connection = pid, connection
        self.pidfd = os.pidfd_open(pid)  # -1 after close
        self._lock = threading.Lock()  # one thread may kill in a send while another closes
        self.oom_kills_before = oom_kills
        self.rss_bytes: int | None = None
        self.error: ErrorMessage | None = None
        self.hung = ""  # reason for which the parent killed it

    def send(self, message: object, what: str, receive: Callable[[], object]) -> None:
        """Sends a message; kills a worker that does not read it, because it may have received a part.

        Args:
            message: Message, as `WorkerChannel.send` takes it.
            what: name of the message.
            receive: Receive, as `WorkerChannel.send` takes it.
        """
        try:
            self.connection.send(message, receive)
        except BlockingIOError:
            self.kill(f"it did not read {what} within {_SEND_SECONDS:g} s; it may have been stopped (SIGSTOP)")
        except OSError:
            pass  # it is dead, and its exit is described later

    def kill(self, reason: str) -> None:
        self.hung = reason
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal; does nothing if the process has ended."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, number)

    def has_ended(self, timeout_seconds: float) -> bool:
        poll = select.poll()  # select.select rejects descriptors above 1,023
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_seconds) * 1e3))

    def has_stopped(self, deadline: float) -> bool:
        """Waits for the end of the process. Discards its messages: a worker that is blocked in a send cannot end."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.register(self.connection.descriptor, select.POLLIN)
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = [descriptor for descriptor, _ in poll.poll(min(left * 1e3, MAX_POLL_MILLISECONDS))]
            if self.pidfd in ready or not left:
                return self.pidfd in ready
            if ready:
                self.connection.discard()
            if ready and self.connection.has_ended:
                poll.unregister(self.connection.descriptor)  # otherwise it would end every wait immediately

    def close(self) -> None:
        self.connection.close()
        with self._lock:
            os.close(self.pidfd)
            self.pidfd = -1


class WorkerProcesses:
    """Owner of the worker processes. Thread-safety: `check` and `fail` from any thread; the rest from one at a time.

    The constructor starts the fork server, so that it is ready at the first `spawn`.

    Attributes:
        doorbells: one for each worker; ring after posting actions or releasing a slot.
        infos: newest info message of each part.
        failed_descriptor: readable from the first error on.
        lacked_memory: Whether the kernel has killed a worker for lack of memory.
        messages_descriptor: readable while a worker's message, or a part of one, waits to be read by `check` or
            `receive`.
    """

    def __init__(self, num_workers: int, num_parts: int, env_id: str) -> None:
        self._env_id = env_id
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._has_warned = False  # of repaired output
        self._stacks: list[int] = []
        with contextlib.ExitStack() as made:  # closes what is made if the rest fails
            self.doorbells = [made.enter_context(closing(Doorbell())) for _ in range(num_workers)]
            self._failed = made.enter_context(closing(Doorbell()))
            for worker in range(num_workers):  # a worker writes its stack here on request, and when it crashes
                self._stacks.append(os.memfd_create(f"stack of worker {worker}"))
                made.callback(os.close, self._stacks[-1])
            self._messages = made.enter_context(closing(select.epoll()))
            self._server = made.enter_context(closing(ForkServer()))
            self._memory = CgroupMemory()
            self._made = made.pop_all()
        self.failed_descriptor = self._failed.descriptor
        self.lacked_memory = False
        self.infos: list[InfosMessage | None] = [None] * num_parts
        self.messages_descriptor = self._messages.fileno()
        self._processes: list[_Process | None] = [None] * num_workers
        self._stopping = False
        self._descriptors: list[int] = []

    @property
    def _pids(self) -> list[int]:
        return [process.pid for process in self._processes if process is not None]

    def share(self, segment: int, board: int, bells: Sequence[Doorbell], policy_descriptors: Sequence[int]) -> None:
        """Sets the descriptors that every worker receives.

        Args:
            segment: descriptor of the shared memory.
            board: descriptor of the workers' board.
            bells: the doorbells of inference and of the learner.
            policy_descriptors: descriptors for the workers' local policies.
        """
        self._descriptors = [segment, board, *(bell.descriptor for bell in bells), *policy_descriptors]

    def spawn(self, config: WorkerConfig) -> None:
        """Forks a worker, whose predecessor (if any) has been reaped; returns before its environments are ready.

        Raises:
            EnvPoolError: If the fork server has ended.
        """
        worker, (segment, *others) = config.worker, self._descriptors
        os.ftruncate(self._stacks[worker], 0)
        os.lseek(self._stacks[worker], 0, os.SEEK_SET)
        ours, theirs = socket.socketpair()
        with theirs:
            own = [theirs.fileno(), self.doorbells[worker].descriptor, self._stacks[worker]]
            pid = self._server.fork([segment, *own, *others])
        process = _Process(pid, WorkerChannel(ours, _SEND_SECONDS), self._memory.oom_kills())
        with self._lock:
            self._processes[worker] = process
            self._messages.register(process.connection.descriptor, select.EPOLLIN)
        process.send(config, "its configuration", self.receive)

    def prepare_spare(self, config: WorkerConfig) -> None:
        """Prepares a process that the next `spawn` turns into a worker; does nothing if there is one.

        Raises:
            EnvPoolError: If the fork server has ended.
        """
        note = note_source(config)
        try:
            self._server.prepare(note)
        finally:
            os.close(note)

    def pidfd(self, worker: int) -> int:
        """Returns a descriptor that is readable after the worker has died; -1 while there is none."""
        process = self._processes[worker]
        return -1 if process is None else process.pidfd

    def send_resets(self, worker: int, requests: Mapping[int, ResetRequest]) -> None:
        """Sends the requests of posted RESET steps of a worker's parts, by part."""
        process = self._processes[worker]
        if process is not None:
            process.send(requests, "a reset", self.receive)

    def ring_all(self) -> None:
        """Wakes every worker."""
        for bell in self.doorbells:
            bell.ring()

    def check(self) -> None:
        """Receives the workers' messages.

        Raises:
            WorkerError: If an environment raised; the message ends with its original traceback. Or its infos cannot be
                unpickled here; their worker lives until `stop`.
            BadEnvOutputError: If an environment returned output that its spaces do not allow.
            WorkerDiedError: If a worker died without a message, and its restarts are exhausted.
            TooManyFailedEnvsError: too few rows are left.
        """
        with self._lock:
            self._receive_readable()
            if self._error is not None:
                raise self._error

    def receive(self) -> list[int]:
        """Receives the workers' messages without raising their errors.

        Returns:
            The workers that have sent a message, or a part of one.
        """
        with self._lock:
            return self._receive_readable()

    def fail(self, error: Exception) -> None:
        """Makes `check` raise this error, unless there is an earlier one."""
        with self._lock:
            self._error = self._error or error
        self._failed.ring()

    def record_memory(self) -> None:
        """Records the memory use of each worker."""
        for process in self._processes:
            if process is not None:
                process.rss_bytes = resident_bytes(process.pid) or process.rss_bytes

    def kill_hung(self, worker: int, reason: str) -> None:
        """Makes a worker write its stack, and kills it; `reason` becomes part of the description of its exit."""
        process = self._processes[worker]
        if process is None:
            return
        process.hung = reason
        process.send_signal(STACK_SIGNAL)
        deadline, size = time.monotonic() + _STACK_SECONDS, 0
        while time.monotonic() < deadline:  # written in pieces: it is complete when it stops growing
            process.has_ended(_STACK_SECONDS / 6)
            before, size = size, os.fstat(self._stacks[worker]).st_size
            if size and size == before:
                break
        process.send_signal(signal.SIGKILL)

    def reap(self, worker: int, in_step: bool) -> tuple[str, Exception]:
        """Receives a dead worker's last messages and releases its resources.

        Returns:
            A description of the exit, and the error to raise if the worker cannot be restarted.
        """
        with self._lock:
            self._receive_from(worker)
            process, self._processes[worker] = self._processes[worker], None
            if process is None:
                raise RuntimeError(f"worker {worker} was reaped twice")
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

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> None:
        """Ends all workers, whose stop flag is already set: requests, waits, kills. Idempotent.

        Args:
            timeout_seconds: time before a worker is killed. A Ctrl-C ends the wait.
        """
        with self._lock:  # from now on `check` and `receive` ignore the descriptors
            if self._stopping:
                return
            self._stopping = True
        processes = [process for process in self._processes if process is not None]
        with contextlib.ExitStack() as ending:  # from the last callback to the first, also after a Ctrl-C
            ending.callback(self._made.close)
            for process in processes:
                ending.callback(process.close)
                ending.callback(process.has_ended, STOP_SECONDS)
            for process in processes:  # does nothing to those that have ended
                ending.callback(process.kill, "it did not stop")
            self.ring_all()
            deadline = time.monotonic() + timeout_seconds
            for process in processes:
                process.has_stopped(deadline)  # False if it is stuck inside an environment

    def _receive_readable(self) -> list[int]:
        if self._stopping:
            return []
        readable = {descriptor for descriptor, _ in self._messages.poll(0)}
        if not readable:
            return []
        processes = enumerate(self._processes)
        workers = [worker for worker, process in processes if process and process.connection.descriptor in readable]
        for worker in workers:
            self._receive_from(worker)
        return workers

    def _unregister(self, process: _Process) -> None:
        with contextlib.suppress(FileNotFoundError):  # it is already unregistered
            self._messages.unregister(process.connection.descriptor)

    def _receive_from(self, worker: int) -> None:
        process = self._processes[worker]
        if process is None:
            return
        for message in process.connection.receive():
            if isinstance(message, InfosMessage):
                self.infos[message.part] = message
            elif isinstance(message, FailureMessage):
                if not (message.once and self._has_warned):
                    _LOG.warning("environment worker %d: %s", worker, message.text)
                self._has_warned |= message.once
            elif isinstance(message, ErrorMessage):
                process.error = message
            elif isinstance(message, Exception):
                self._error = self._error or self._unreadable(worker, message)
                self._failed.ring()
        if process.connection.has_ended:  # otherwise it would end every wait immediately while the process lives
            self._unregister(process)

    def _raised(self, worker: int, message: ErrorMessage) -> Exception:
        text = f"environment worker {worker} ({self._env_id}): {message.message}"
        if message.kind == "BadEnvOutputError":
            return BadEnvOutputError(text)
        return WorkerError(f"{text}\n\nIn the worker:\n{message.traceback}")

    def _unreadable(self, worker: int, error: Exception) -> WorkerError:
        """Returns the error for infos that cannot be unpickled here."""
        failure = WorkerError(
            f"environment worker {worker} ({self._env_id}) sent infos, or observations sent as objects, that the main process "
            f"cannot unpickle ({type(error).__name__}: {error}): return values that `pickle` restores in this process"
        )
        failure.__cause__ = error
        return failure

    def _describe(self, process: _Process, status: int | None, in_step: bool) -> str:
        if status is None:
            return "exit status unknown"
        kills, before = self._memory.oom_kills(), process.oom_kills_before
        known = None if kills is None or before is None else kills - before
        self.lacked_memory |= bool(known) and status == -signal.SIGKILL
        return describe_exit(status, ExitContext(in_step, process.rss_bytes, known, self._memory.limit_bytes()))
