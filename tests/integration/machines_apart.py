"""Machines of a test: network namespaces on one switch, each with shared memory and a directory for Ray of its own.

What they share is the processor, the clock and the installation. Needs root, and a kernel that has namespaces.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SUBNET = "10.77.0"
_PORT = 6379
_LIMIT_SECONDS = 180.0
_STARTS = 4  # Ray gives each node half a minute, whatever else the machine does


class NoNamespacesError(Exception):
    """This process may not make network namespaces."""


class Network:
    """Machines on one switch, with names m0, m1, ... that all of them know. One thread."""

    def __init__(self, count: int) -> None:
        """Makes machine 0, which has the switch, and `count` others. Raises NoNamespacesError."""
        self._names = [f"jaxsrl{os.getpid()}m{number}" for number in range(count + 1)]
        self._directory = Path(tempfile.mkdtemp(prefix="machines-", dir="/tmp"))  # sockets' names must be short
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def start(self, number: int, *command: str, own_address: str = "", **options: Any) -> "subprocess.Popen[str]":
        """Starts a command on a machine, whose own name may have another address than its network's, as in /etc/hosts of Debian."""
        addresses = {other: f"{_SUBNET}.{other + 1}" for other in range(len(self._names))}
        addresses[number] = own_address or addresses[number]
        hosts = self._directory / f"hosts{number}{own_address}"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{each} m{other}\n" for other, each in addresses.items()))
        inside = f'hostname m{number} && mount --bind {hosts} /etc/hosts && exec "$@"'
        there = ["ip", "netns", "exec", self._names[number], "unshare", "--mount", "--uts", "sh", "-c", inside, "sh"]
        return subprocess.Popen([*there, *command], text=True, **options)

    def cut(self, number: int) -> None:
        """Kills all that runs on a machine, as when it loses its power; `number` counts from 1."""
        for pid in _processes_in(self._names[number]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends all processes and removes the namespaces; idempotent."""
        for number, name in enumerate(self._names):
            self.cut(number)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        for process in self._started.values():
            process.wait(_LIMIT_SECONDS)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _connect(self) -> None:
        head = self._names[0]
        for name in self._names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", head, "link", "add", "switch", "type", "bridge")
        _ip("-n", head, "addr", "add", f"{_SUBNET}.1/24", "dev", "switch")
        _ip("-n", head, "link", "set", "switch", "up")
        for number, name in enumerate(self._names[1:], 1):
            _ip("-n", head, "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", head, "link", "set", f"to{number}", "master", "switch", "up")
            _ip("-n", name, "addr", "add", f"{_SUBNET}.{number + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")


class Machines(Network):
    """A head without cores and some machines, joined as one Ray cluster. One thread.

    Attributes:
        address: Address of the cluster.
    """

    def __init__(self, count: int, cores: int) -> None:
        """Starts them. Raises NoNamespacesError, or RuntimeError with what Ray said."""
        super().__init__(count)
        self._environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": os.urandom(16).hex(),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
        }
        self._cores = cores
        self.address = f"{_SUBNET}.1:{_PORT}"
        try:
            self._start_nodes([0], 1)
            self._start_nodes(range(1, count + 1), count + 1)
        except BaseException:
            self.close()
            raise

    def run_at_head(self, *command: str | Path, limit_seconds: float) -> "subprocess.CompletedProcess[str]":
        """Runs a command on the head, in this process's working directory."""
        inside = ("nsenter", "-t", str(self._started[0].pid), "-n", "-m", f"--wd={os.getcwd()}")
        environment = {**self._environment, "RAY_ADDRESS": self.address}
        return subprocess.run(
            [*inside, *map(str, command)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_seconds,
            check=False,
        )

    def _start_nodes(self, numbers: Sequence[int], expected: int) -> None:
        """Starts Ray on some machines, and again where it did not; returns when as many as expected have joined."""
        deadline = time.monotonic() + _LIMIT_SECONDS
        starts = dict.fromkeys(numbers, 0)
        while True:
            for number in numbers:
                if number not in self._started or self._started[number].poll() is not None:
                    starts[number] += 1
                    if starts[number] > _STARTS:
                        raise RuntimeError(
                            f"machine {number} did not start Ray:\n{self._log(number).read_text()[-1500:]}"
                        )
                    self._started[number] = self._start(number)
            if self._num_nodes() == expected:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{expected} machines did not join in {_LIMIT_SECONDS:g} s")
            time.sleep(1.0)

    def _num_nodes(self) -> int:
        asked = "import ray; ray.init(log_to_driver=False, logging_level='ERROR'); print(sum(n['Alive'] for n in ray.nodes()))"
        done = self.run_at_head(sys.executable, "-c", asked, limit_seconds=_LIMIT_SECONDS)
        return int(done.stdout) if done.stdout.strip().isdigit() else 0

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        mounts = f'mount -t tmpfs none /dev/shm && mount -t tmpfs none {self._directory} && exec "$@"'
        inside = ["ip", "netns", "exec", self._names[number], "unshare", "--mount", "sh", "-c", mounts, "sh"]
        head = ["--head", "--port", str(_PORT), "--temp-dir", str(self._directory), "--include-dashboard", "false"]
        how = ["--address", self.address, "--num-cpus", str(self._cores)] if number else [*head, "--num-cpus", "0"]
        here = ["--node-ip-address", f"{_SUBNET}.{number + 1}", "--object-store-memory", "200000000", "--block"]
        command = [str(Path(sys.executable).parent / "ray"), "start", *how, *here]
        with self._log(number).open("wb") as log:
            return subprocess.Popen([*inside, *command], env=self._environment, stdout=log, stderr=log)

    def _log(self, number: int) -> Path:
        return self._directory / f"machine{number}.log"


def namespaces() -> set[str]:
    """Names of the network namespaces of this machine."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return {line.split()[0] for line in listed.stdout.splitlines() if line.strip()}


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoNamespacesError("there is no command ip (iproute2)") from error
    if done.returncode:
        raise NoNamespacesError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _processes_in(name: str) -> Sequence[int]:
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]
