"""Host of one command on a node: starts it there, returns its exit status, and passes signals on."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.machine.bound_command import bound_command

_SEE_SECONDS = 10.0  # until a node sees a file that another has written
_LOOK_SECONDS = 0.2
# Ray blocks SIGINT in all its processes, and `nohup ray start` ignores SIGHUP: the command would inherit both.
_PROGRAM = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclasses.dataclass(frozen=True)
class CommandSetup:
    """A command for a node.

    Attributes:
        command: program and arguments; the node runs its own Python in place of the program.
        output: absolute path of the file to which the output is appended.
        directory: working directory, an absolute path.
        token_file: absolute path of a file that all nodes must see.
        token: contents of that file.
        environment: variables to set in addition to those of the node.
        lease_seconds: time without a call after which the host ends, and the command with it.
    """

    command: Sequence[str]
    output: Path
    directory: Path
    token_file: Path
    token: str
    environment: Mapping[str, str]
    lease_seconds: float


class CommandHost:
    """One command in a process of its own, which ends with this process. Thread-safety: one thread, but for `has_lease`.

    A call may arrive long after it was sent, when the command runs on another node already. The lease therefore counts from the
    call before it: the caller sends `status` only after it has received the answer to the previous one.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lease_seconds, self._lease_begin = float("inf"), time.monotonic()
        self._called_at = self._lease_begin

    def start(self, setup: CommandSetup) -> str:
        """Starts the command; returns the name of this machine.

        Raises:
            UserError: this node does not see the files of the caller, or cannot write the output.
        """
        machine = os.uname().nodename
        _validate_files(setup, machine)
        try:
            self._process = _start(setup)
        except OSError as error:
            raise UserError(
                f"node {machine} cannot start a run: {error}; the user who started the cluster must be able to write the "
                f"runs, and to enter the working directory {setup.directory}"
            ) from error
        self._called_at = self._lease_begin = time.monotonic()
        self._lease_seconds = setup.lease_seconds
        return machine

    def status(self) -> int | None:
        """Extends the lease; returns the exit status of the command, negative for a signal, and None while it runs."""
        if self.has_lease():
            self._lease_begin, self._called_at = self._called_at, time.monotonic()
        return self._running().poll()

    def send_signal(self, number: int) -> None:
        """Sends a signal to the command, unless it has ended."""
        self._running().send_signal(number)

    def has_lease(self) -> bool:
        """Returns whether the last call but one is recent enough."""
        return time.monotonic() - self._lease_begin < self._lease_seconds

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError("start comes first")
        return self._process


def _start(setup: CommandSetup) -> "subprocess.Popen[bytes]":
    """Starts the command, with default handling of stop signals."""
    program = [sys.executable, "-I", "-S", "-c", _PROGRAM, sys.executable]
    with open(setup.output, "ab") as output:
        return subprocess.Popen(
            bound_command([*program, *setup.command[1:]]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=setup.directory,
            env={**os.environ, **setup.environment},
            start_new_session=True,  # a signal to the node's processes reaches it only through the caller
        )


def _validate_files(setup: CommandSetup, machine: str) -> None:
    """Raises UserError unless the working directory and the token file are those of the caller."""
    deadline = time.monotonic() + _SEE_SECONDS
    while not os.path.isdir(setup.directory) or _read(setup.token_file) != setup.token:
        if time.monotonic() > deadline:
            raise UserError(
                f"node {machine} does not see {setup.token_file.parent}, or the working directory {setup.directory}: runs on "
                f"nodes need both on a file system that all nodes share, at the same paths"
            )
        time.sleep(_LOOK_SECONDS)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
