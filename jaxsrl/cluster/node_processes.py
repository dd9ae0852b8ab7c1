"""Commands as processes on the nodes of a cluster, with the interface of local processes.

A node runs a command only as long as this process calls its host: the lease. A lost command starts again when its lease is over,
so that no two processes ever write into its directory, even if its node is only out of reach.
"""

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from envpool_bridge.errors import EnvPoolError, UserError
from jaxsrl.cluster.hosts.command_host import CommandSetup
from jaxsrl.cluster.protocol.engine import Call, Engine, HostGoneError, RemoteHost
from jaxsrl.machine.lifecycle import RequeueError
from jaxsrl.machine.resources import Node
from jaxsrl.machine.run_tasks import POLL_SECONDS, Task

_CALL_SECONDS = 0.5  # between calls of one host
_TRANSIT_SECONDS = 2.0  # in which a call arrives, and a host notices the end of its lease
_START_SECONDS = 120.0  # longest start of a command by a host, which may wait for the shared file system
_PASSED_ON = ("JAX", "XLA_")  # variables that change the programs of a run
_MOST_LETTERS = 300  # of a line of output in a message
_TAIL_BYTES = 8192


class NodeProcessLostError(RequeueError):
    """A command was lost with its node or did not start too often, or no node has had room for it. Exit status 75."""


@dataclasses.dataclass(frozen=True)
class NodeLimits:
    """Limits of commands on nodes.

    Attributes:
        max_restarts: Largest number of restarts of one command after its node was lost, or did not start it.
        lease_seconds: time without a call after which a node ends its command.
        room_seconds: longest time in which a command waits for room while no other runs.
    """

    max_restarts: int = 5
    lease_seconds: float = 60.0
    room_seconds: float = 300.0


@dataclasses.dataclass(frozen=True)
class SharedFile:
    """A file that all nodes must see.

    Attributes:
        path: absolute path.
        token: Contents of the token.
    """

    path: Path
    token: str


class NodeProcesses:
    """Commands on the nodes of a cluster. Thread-safety: one thread.

    Args:
        calls: engine of the cluster, of which it uses `check`, `wait` and `get`.
        spawn: starts a `CommandHost` on a node as soon as one has room.
        shared: file by which nodes prove that they share a file system.
        room: description of what each command takes, for messages.
        show: receives a line when a command runs on a node, and when it is lost.
        limits: Limits of restarts and waits.

    Attributes:
        answered_at: when a host answered last.
    """

    def __init__(
        self,
        calls: Engine,
        spawn: Callable[[], RemoteHost],
        shared: SharedFile,
        room: str,
        show: Callable[[str], None],
        limits: NodeLimits | None = None,
    ) -> None:
        self.calls, self.spawn, self.room, self.show = calls, spawn, room, show
        self.limits, self._shared = limits or NodeLimits(), shared
        self.answered_at = time.monotonic()
        self._processes: list[NodeProcess] = []

    def start(self, task: Task) -> "NodeProcess":
        """Starts a command, without waiting for room."""
        setup = CommandSetup(
            tuple(task.command),
            (task.output or Path(os.devnull)).absolute(),
            Path.cwd(),
            self._shared.path,
            self._shared.token,
            {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)},
            self.limits.lease_seconds,
        )
        process = NodeProcess(self, task.name, setup)
        self._processes = [*(each for each in self._processes if not each.has_ended), process]
        return process

    def poll(self) -> None:
        """Calls the hosts of all commands that run, which extends their leases."""
        for process in self._processes:
            process.poll()

    def close(self) -> None:
        """Kills all commands; idempotent."""
        for process in self._processes:
            process.kill()


class NodeProcess:
    """A command on a node, through its restarts on others. Thread-safety: one thread."""

    def __init__(self, owner: NodeProcesses, name: str, setup: CommandSetup) -> None:
        self._owner, self._name, self._setup = owner, name, setup
        self._status: int | None = None
        self._stop_signal, self._restarts, self._restart_at = 0, 0, 0.0
        self._has_started, self._output_begin = False, _size(setup.output)
        self._spawn()

    @property
    def has_ended(self) -> bool:
        """Returns whether it has an exit status."""
        return self._status is not None

    def poll(self) -> int | None:
        """Returns the exit status, negative for a signal; None while it runs, waits for room, or is about to start again.

        Raises:
            NodeProcessLostError: If the command was lost or did not start too often, or no node has had room for it in time.
            ClusterLostError: If the cluster is lost.
            UserError: If the node does not share the files of this process.
        """
        now = time.monotonic()
        if self._status is not None:
            return self._status
        self._owner.calls.check()
        if self._remote is None:
            if now >= self._restart_at:
                self._spawn()
        elif self._call is None:
            if now - self._called_at >= _CALL_SECONDS:
                self._called_at, self._call = now, self._remote.call("control", "status")
        elif self._owner.calls.wait([self._call], 0.0):
            self._take_answer(self._call)
        elif self._is_started and now - self._called_at > self._owner.limits.lease_seconds:
            self._on_loss("it did not answer")
        elif not self._is_started:
            self._validate_start(now)
        return self._status

    def send_signal(self, sig: int) -> None:
        """Sends a signal, unless the command has ended. It does not start again after that."""
        self._stop_signal = sig
        if not self._is_started:
            self._end(-sig)
        elif self._remote is not None and self._status is None:
            self._called_at = time.monotonic()
            self._remote.call("control", "send_signal", int(sig))

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status; calls the other hosts meanwhile.

        Raises:
            subprocess.TimeoutExpired: If the command did not end within `timeout` seconds.
        """
        deadline = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self._status is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self._setup.command, timeout or 0.0)
            time.sleep(POLL_SECONDS)
            self._owner.poll()
        return self._status

    def kill(self) -> None:
        """Ends the command at once, with its host; idempotent."""
        self._end(-signal.SIGKILL)

    def _spawn(self) -> None:
        self._is_started, self._called_at = False, time.monotonic()
        self._remote: RemoteHost | None = self._owner.spawn()
        self._placed_at: float | None = None
        self._placing: Call = self._remote.call("control", "has_lease")  # ends as soon as a node has room
        self._call: Call | None = self._remote.call("control", "start", self._setup)

    def _take_answer(self, call: Call) -> None:
        try:
            answer = self._owner.calls.get(call)
        except HostGoneError as error:
            self._on_loss(_reason(error))
            return
        except EnvPoolError:
            self._end(1)
            raise
        self._call, self._owner.answered_at = None, time.monotonic()
        if not self._is_started:
            self._is_started = self._has_started = True
            self._called_at = time.monotonic()
            self._owner.show(f"{self._name} runs on node {answer}")
        elif isinstance(answer, int):
            self._end(answer)

    def _on_loss(self, reason: str) -> None:
        """Schedules a restart, unless the command is to stop."""
        limits = self._owner.limits
        if self._remote is not None:
            self._remote.kill()
        self._remote = self._call = None
        if self._stop_signal:
            self._end(-self._stop_signal)
            return
        self._restarts += 1
        if self._restarts > limits.max_restarts:
            self._end(1)
            raise self._lost_error(reason)
        now = time.monotonic()  # a start without an answer may have been executed
        last_call, self._is_started = self._called_at if self._is_started else now, False
        self._restart_at = max(now, last_call + limits.lease_seconds + _TRANSIT_SECONDS)
        self._owner.show(
            f"{self._name} is lost ({reason}): in {self._restart_at - now:.0f} s it starts again from its newest checkpoint"
        )

    def _lost_error(self, reason: str) -> NodeProcessLostError:
        """Returns the error of a command without a restart left: what happened, why, and what the command said last."""
        what, look = "was lost with its node", "the memory"
        if not self._has_started:
            what, look = "could not start on a node", "the Python environments"
        output = self._setup.output
        said = _last_line(_read_tail(output, self._output_begin))
        last = f"Its last output, in {output}: {said}. " if said else ""
        return NodeProcessLostError(
            f"{self._name} {what} {self._restarts} times, at most {self._owner.limits.max_restarts} are allowed. The last time: "
            f"{reason.rstrip('.')}. {last}Look at {look} and the logs of the nodes. The same command continues"
        )

    def _validate_start(self, now: float) -> None:
        """Raises an error if the command has waited for room too long, while no other command ran; ends a start that hangs."""
        if self._placed_at is None and self._owner.calls.wait([self._placing], 0.0):
            self._placed_at = now
        if self._placed_at is not None:
            if now - self._placed_at > _START_SECONDS:
                self._on_loss(f"a node had room, but did not start it within {_START_SECONDS:g} s")
            return
        limit = self._owner.limits.room_seconds
        if now - max(self._called_at, self._owner.answered_at) > limit:
            self._end(1)
            raise NodeProcessLostError(
                f"no node has had room for {self._name} for {limit:g} s ({self._owner.room}): wait for other users of the "
                f"cluster, or add nodes. The same command continues"
            )

    def _end(self, status: int) -> None:
        if self._status is None:
            self._status = status
        if self._remote is not None:
            self._remote.kill()
        self._remote = self._call = None


def _reason(error: HostGoneError) -> str:
    """Returns why a host is no more. A cause that is longer than the message ends with the words that matter, a traceback say."""
    reason, last = str(error), _last_line(str(error.__cause__ or ""))
    return reason if last in reason else f"{reason} [...] {last}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_tail(path: Path, begin: int) -> str:
    """Returns the end of a file, at most from byte `begin` on; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(begin, _size(path) - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _last_line(text: str) -> str:
    """Returns the words of the last line that has any, without what is too much for a message."""
    lines = (" ".join(line.split()) for line in reversed(text.splitlines()))
    return next(filter(None, lines), "")[:_MOST_LETTERS].rstrip(".")


def share_of_nodes(nodes: Sequence[Node], at_once: int) -> tuple[int, int]:
    """Returns cores and GPUs to reserve for each of several commands that run at the same time: as many cores as possible.

    Each has one GPU of its own if the nodes have enough of them. Otherwise none is reserved: commands share those of their node.

    Args:
        nodes: Nodes of the cluster.
        at_once: number of commands.

    Raises:
        UserError: `at_once` is below 1, or above the number of cores.
    """
    most = max((node.num_cores for node in nodes), default=0)
    for gpus in (1, 0):
        for cores in range(most, 0, -1):
            places = sum(min(node.num_cores // cores, node.num_gpus if gpus else node.num_cores) for node in nodes)
            if places >= at_once >= 1:
                return cores, gpus
    raise UserError(
        f"runs at the same time on nodes: expected at least 1, and at most one for each of the "
        f"{sum(node.num_cores for node in nodes)} cores of the nodes, got {at_once}"
    )
