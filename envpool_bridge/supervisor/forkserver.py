"""A small process that forks environment workers quickly and ends them when the main process dies.

Forking the main process is impossible: it runs jax, whose threads do not survive a fork. A fresh interpreter for each
worker takes 0.2 s. Therefore one clean interpreter imports gymnasium once and forks on request (~7 ms). The forkserver
of `multiprocessing` imports the user's script, and with it jax, into every worker, and its processes survive a killed
main process.

Every process here asks the kernel for SIGKILL on its parent's death, so that SIGKILL of the main process ends all. The
kernel watches the thread that started the process, so a thread with the server's lifetime starts it. The parent of a worker is its
keeper, which ends what environments have started.

A stop signal often reaches the process group (a terminal, `timeout`) or every process of a run (systemd, Slurm). Only
the main process reacts: the server and the workers are a process group of their own with a handler that does nothing.
The main process can then finish its update and save.
"""

import array
import contextlib
import gc
import json
import multiprocessing.process
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn

from envpool_bridge.errors import EnvPoolError
from envpool_bridge.supervisor.keeper import (
    END_SIGNAL,
    adopt_descendants,
    end_children,
    fork_kept,
    kill_on_parent_exit,
    reap,
)
from envpool_bridge.supervisor.warm_spare import MAX_DESCRIPTORS, Spare, prepare_and_wait
from envpool_bridge.worker.process_tuning import end_forked_process, flush_output

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from envpool_bridge.supervisor.forkserver import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
"""Signals that ask a run to stop."""
_START_SECONDS = 60.0
_END_SECONDS = 5.0
_OOM_SCORE = "500"  # of 1000; every process may raise its own
# One thread each, unless the user wants others: the number of workers is what uses the cores.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# If an environment imports jax, jax must not take the accelerator from the learner.
_NO_ACCELERATOR = {"JAX_PLATFORMS": "cpu"}


class ForkServer:
    """Parent's handle of the server process. Process-safety: one owner, its creator. One thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        started: Future[subprocess.Popen[bytes]] = Future()
        # Lives as long as the server: the kernel kills the server when this thread ends.
        self._thread = threading.Thread(target=_keep, args=(theirs, started), name="fork server", daemon=True)
        self._thread.start()
        try:
            self._process = started.result(_START_SECONDS)
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        self._socket.settimeout(_START_SECONDS)

    def fork(self, descriptors: list[int]) -> int:
        """Forks a worker that owns copies of `descriptors` and runs `worker.main`.

        Returns:
            The worker's process id.

        Raises:
            EnvPoolError: If the server has ended, or does not answer, or there is no room for another process.
        """
        return self._request({"do": "fork"}, descriptors)["pid"]

    def prepare(self, note: int) -> None:
        """Forks a process ahead of time that one of the next calls of `fork` turns into a worker; one at most.

        Args:
            note: Note from `warm_spare.note_source`; stays the caller's.

        Raises:
            EnvPoolError: If the server has ended.
        """
        self._request({"do": "prepare"}, [note])

    def exit_status(self, pid: int, timeout_seconds: float = 1.0) -> int | None:
        """Returns the worker's exit status in the form of `subprocess` (negative: signal); None while it runs."""
        return self._request({"do": "wait", "pid": pid, "seconds": timeout_seconds}, [])["status"]

    def close(self) -> None:
        """Ends the server, its workers and what they have started. Idempotent."""
        with contextlib.suppress(OSError):  # it is closed
            self._socket.shutdown(socket.SHUT_RDWR)  # a process that this one has forked may hold it open
        self._socket.close()
        self._thread.join(_END_SECONDS)
        self._process.kill()  # a stopped one
        self._thread.join(_END_SECONDS)

    def _request(self, message: dict[str, object], descriptors: list[int]) -> dict[str, Any]:
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
            reply = self._socket.recv(4096)
        except TimeoutError as error:
            seconds = self._socket.gettimeout()
            self._socket.close()  # a late reply would answer the next request
            raise EnvPoolError(
                f"the process that starts environment workers (pid {self._process.pid}) did not answer within {seconds:g} s; "
                "it may have been stopped (SIGSTOP), or the machine is overloaded: start the run again"
            ) from error
        except OSError as error:
            reply = b""
            cause: OSError | None = error
        else:
            cause = None
        if not reply:
            self._thread.join(_END_SECONDS)
            status = self._process.returncode
            raise EnvPoolError(
                f"the process that starts environment workers has ended (exit status {status}); its own message is above"
            ) from cause
        answer = json.loads(reply)
        if "error" in answer:
            raise EnvPoolError(
                f"an environment worker cannot be started ({answer['error']}): use fewer workers, or allow more processes "
                f"(ulimit -u, the limit of processes of the container)"
            )
        return answer


def _keep(socket_of_server: socket.socket, started: "Future[subprocess.Popen[bytes]]") -> None:
    """Starts the server process and waits for its end."""
    descriptor = socket_of_server.fileno()
    # The server inherits the mask: no stop signal ends it before it has its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    with socket_of_server:
        try:
            command = [sys.executable, "-P", "-c", _BOOTSTRAP, import_path(), str(descriptor), str(os.getpid())]
            # A terminal and `timeout` signal the main process's group. The server, its workers and the programs that environments
            # start are in another group.
            process = subprocess.Popen(
                command,
                pass_fds=[descriptor],
                env={**_THREADS, **os.environ, **_NO_ACCELERATOR},
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        except BaseException as error:  # noqa: BLE001  raised again in the thread that wants the server
            started.set_exception(error)
            return
    started.set_result(process)
    process.wait()


def import_path() -> str:
    """Returns the import path of this process for another one, as JSON: "" is the directory in which this one was started."""
    started_in = getattr(multiprocessing.process, "ORIGINAL_DIR", None) or ""  # None where it has been removed
    return json.dumps([os.path.join(started_in, entry) for entry in sys.path if isinstance(entry, str)])


def prefer_oom_kill() -> None:
    """Makes this process the kernel's first victim when memory runs out: a worker is replaceable, a learner is not."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)


def _do_nothing(*_: object) -> None:
    """Handles a stop signal. Unlike SIG_IGN it is reset by exec, so stop signals still end programs of environments."""


def _outlive_stop_signals() -> None:
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # set by nohup for every program
            signal.signal(number, _do_nothing)
            signal.siginterrupt(number, False)  # native code of environments may not expect EINTR


def _restore_stop_signals_in_forks() -> None:
    """Restores default actions in processes that an environment forks; signals are blocked in the meantime."""
    masks = threading.local()

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def restore() -> None:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is _do_nothing:
                signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)


def serve(descriptor: int, parent: int) -> None:
    """Runs the server process: forks and reaps on request until its socket closes."""
    kill_on_parent_exit(parent)
    adopt_descendants()
    _outlive_stop_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    server = _Server(socket.socket(fileno=descriptor))
    while server.answer():
        pass
    server.close()


class _Server:
    """State of the server process. Single-threaded."""

    def __init__(self, connection: socket.socket) -> None:
        from envpool_bridge.worker import main  # imports gymnasium, once for all workers

        self._connection, self._main = connection, main.main
        self._keepers: dict[int, int] = {}  # by worker
        self._ended: dict[int, int] = {}  # exit statuses by keeper
        gc.freeze()  # otherwise the first collection in every worker would touch, and so copy, all shared pages
        self._spare: Spare | None = None
        self._modules: list[str] = []  # that a spare has imported

    def answer(self) -> bool:
        """Answers the next request; returns False when there are no more."""
        size = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        message, ancillary, _, _ = self._connection.recvmsg(4096, size, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return False
        request, descriptors = json.loads(message), _received(ancillary)
        reply: dict[str, Any] = {}
        if request["do"] == "wait":
            reply = {"status": self._wait(int(request["pid"]), float(request["seconds"]))}
        else:
            try:
                reply = {"pid": self._worker(descriptors)} if request["do"] == "fork" else self._prepare(descriptors[0])
            except OSError as error:  # no room for another process
                reply = {"error": str(error)}
        self._connection.send(json.dumps(reply).encode())
        for copy in descriptors:
            os.close(copy)
        return True

    def _worker(self, descriptors: list[int]) -> int:
        spare = self._spare
        if spare is not None and spare.hand_over(descriptors):
            self._spare, self._modules = None, spare.modules
            return spare.pid
        return self._fork(lambda: self._main(descriptors))

    def _prepare(self, note: int) -> dict[str, Any]:
        if self._spare is not None:
            if self._wait(self._spare.pid, 0.0) is None:
                return {}
            self._spare.close()
            self._spare = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = self._fork(lambda: (ours.close(), prepare_and_wait(theirs, note, self._modules, self._main)))
        self._spare = Spare(pid, ours)
        return {}

    def close(self) -> None:
        """Ends the workers, and all that they have started."""
        for keeper in self._living():
            os.kill(keeper, END_SIGNAL)
        deadline = time.monotonic() + _END_SECONDS
        while self._living() and time.monotonic() < deadline:
            time.sleep(0.001)
        end_children()

    def _living(self) -> set[int]:
        """Returns the keepers that have not ended."""
        self._ended |= reap()
        return {*self._keepers.values()} - self._ended.keys()

    def _wait(self, worker: int, seconds: float) -> int | None:
        """Returns the exit status of a worker once what it has started has ended; None if that is not so in time."""
        keeper = self._keepers.get(worker)
        if keeper is None:
            return None
        deadline = time.monotonic() + seconds
        while keeper in (living := self._living()):
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.001)
        self._ended |= end_children(living)  # of a keeper that was killed
        del self._keepers[worker]
        return os.waitstatus_to_exitcode(self._ended.pop(keeper))

    def _fork(self, body: Callable[[], object]) -> int:
        flush_output()  # otherwise the child would write it again

        def run() -> NoReturn:
            self._connection.close()
            if self._spare is not None:
                self._spare.close()
            status = 0
            try:
                prefer_oom_kill()
                _restore_stop_signals_in_forks()
                body()
            except BaseException:  # noqa: BLE001  a worker reports its error itself, and the one that replaces a failed spare
                status = 1
            end_forked_process(status)

        keeper, worker = fork_kept(run)
        self._keepers[worker] = keeper
        return worker


def _received(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    descriptors = array.array("i")
    for _, kind, data in ancillary:
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data)
    return list(descriptors)
