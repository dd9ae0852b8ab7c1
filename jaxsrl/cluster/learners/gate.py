"""Entrance of the learner processes of a run: process 0 listens at the coordinator's address, and admits each other process once.

jax's own service would let a process with other code train along, and would end a run for a second process with a taken id. It
listens at another port of the same host, which process 0 sends to those that it has admitted.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.config.parts import DistributedConfig
from jaxsrl.config.serialization import differences
from jaxsrl.machine.lifecycle import RequeueError
from jaxsrl.terminal.progress import show_line

MAY_DIFFER = (".distributed", ".directory")
"""Ends of the names of options that learner processes may have of their own."""
_LOOK_SECONDS, _SAY_SECONDS, _MOST_BYTES = 0.2, 30.0, 1 << 22


Members = dict[int, tuple[str, socket.socket]]
"""Learner processes by number: what they are called, and a connection that ends with them."""


class Gate:
    """Process 0's side. Thread-safe. It stays open until this process ends, and rejects processes that come later.

    Args:
        config: Options of the learner processes.
        identity: JSON data that must be equal in all of them.

    Raises:
        UserError: the address cannot be bound.
    """

    def __init__(self, config: DistributedConfig, identity: Mapping[str, Any]) -> None:
        self._config, self._identity = config, json.loads(json.dumps(identity))
        self._members: Members = {}
        self._is_full, self._lock = threading.Event(), threading.Lock()
        host, port = _address(config)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._server = socket.create_server((host, port), family=family)
            with socket.create_server((host, 0), family=family) as free:
                self.service = f"{config.coordinator.rpartition(':')[0]}:{free.getsockname()[1]}"
        except OSError as error:
            raise UserError(
                f"process 0 cannot listen at {config.coordinator} ({error.strerror}): expected an address of this machine, "
                f"{socket.gethostname()}, with a free port; does another process 0 run here?"
            ) from error
        threading.Thread(target=self._accept, name="learner-gate", daemon=True).start()

    def close(self) -> None:
        """Closes the entrance; idempotent."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._server.close()

    def wait(self) -> Members:
        """Waits until all processes are here, and sends them the address of jax's service; returns them.

        Raises:
            RequeueError: they did not all come in time.
        """
        wanted = self._config.num_processes - 1
        start = time.monotonic()
        while len(self._members) < wanted and not self._is_full.wait(_LOOK_SECONDS):
            missing = sorted({*range(1, wanted + 1)} - self._members.keys())
            _say_or_end(self._config, start, f"waits for learner process {', '.join(map(str, missing))}")
        with self._lock:
            self._is_full.set()
            for _, connection in self._members.values():
                with contextlib.suppress(OSError):
                    _send(connection, {"service": self.service, "name": _own_name()})
        return self._members

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._admit, args=(connection,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        """Answers one process, and holds its place until its connection ends."""
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(_SAY_SECONDS)
            message = _receive(connection)
            process, name = int(message["process"]), str(message["name"])
            with self._lock:
                reason = self._reject(process, message)
                if not reason:
                    self._members[process] = name, connection
            if reason:
                show_line(f"rejected {name}: {reason}")
                _send(connection, {"error": reason})
                return
            connection.settimeout(None)
            connection.recv(1)  # returns when the process has ended
            with self._lock:
                if not self._is_full.is_set():
                    del self._members[process]

    def _reject(self, process: int, message: Mapping[str, Any]) -> str:
        """Returns why a process is no part of this run; "" if it is."""
        count = self._config.num_processes
        if message["num_processes"] != count:
            return f"it expects {message['num_processes']} learner processes, process 0 expects {count}"
        lines = differences(self._identity, message["identity"])
        if lines := [line for line in lines if not any(name in line.split(":")[0] for name in MAY_DIFFER)]:
            return (
                f"process {process} was started with another experiment than process 0 (theirs -> its): {', '.join(lines)}; start "
                f"the same command with the same code at every process, but for --distributed.process-id"
            )
        if process not in self._members and 0 < process < count:
            return ""
        holder = self._members[process][0] if process in self._members else _own_name()
        return (
            f"process {process} of this run is already there ({holder}): start each process once, with its own "
            f"--distributed.process-id"
        )


def enter(config: DistributedConfig, identity: Mapping[str, Any]) -> tuple[str, Members]:
    """Joins the run of process 0; returns the address of jax's service, and process 0, whose connection holds this one's place.

    Raises:
        UserError: the coordinator's name is unknown, or process 0 rejects this process.
        RequeueError: process 0 or others did not come in time.
    """
    connection, start = None, time.monotonic()
    host, port = _address(config)
    message = {"process": config.process_id, "num_processes": config.num_processes, "name": _own_name()}
    while connection is None:
        try:
            connection = socket.create_connection((host, port), timeout=_LOOK_SECONDS * 10)
        except socket.gaierror as error:
            raise UserError(
                f"the host of --distributed.coordinator {config.coordinator} is unknown here ({error.strerror}): name the "
                f"machine of process 0"
            ) from error
        except OSError:
            _say_or_end(config, start, f"waits for process 0 at {config.coordinator}")
            time.sleep(_LOOK_SECONDS)
    try:
        connection.settimeout(_LOOK_SECONDS)
        _send(connection, {**message, "identity": identity})
        while True:
            try:
                answer = _receive(connection)
            except TimeoutError:
                _say_or_end(config, start, "waits for the other learner processes")
                continue
            if error := answer.get("error"):
                raise UserError(str(error))
            return str(answer["service"]), {0: (str(answer["name"]), connection)}
    except (OSError, KeyError, ValueError) as error:
        connection.close()
        if isinstance(error, UserError):
            raise
        raise RequeueError(f"process 0 at {config.coordinator} has ended before the run began ({error})") from error


def describe_gone(members: Members) -> str:
    """Returns which learner processes have ended, with their machines; "" if no connection has."""
    return ", ".join(f"learner process {number} ({name})" for number, (name, own) in members.items() if _is_gone(own))


def _is_gone(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def validate_own_name(config: DistributedConfig) -> None:
    """Rejects a machine whose own name is unknown or of its loopback interface, where others are to connect to it.

    Raises:
        UserError: If it is one, and the coordinator is not on the loopback interface.
    """
    host, port = _address(config)
    with contextlib.suppress(OSError):
        if all(_is_loopback(str(each[4][0])) for each in socket.getaddrinfo(host, port)):
            return
        name = socket.gethostname()
        try:
            own = str(socket.getaddrinfo(name, None)[0][4][0])
        except OSError:
            own = ""
        if own and not _is_loopback(own):
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # sends nothing
            address = probe.getsockname()[0]
        raise UserError(
            f"this machine's name {name} is {f'the loopback address {own}' if own else 'unknown to it'}, where no other learner "
            f"process reaches it: expected the line `{address} {name}` in /etc/hosts"
        )


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}"


def _address(config: DistributedConfig) -> tuple[str, int]:
    host, _, port = config.coordinator.rpartition(":")
    return host.strip("[]"), int(port)


def _say_or_end(config: DistributedConfig, start: float, waits: str) -> None:
    """Prints what this process waits for, every 30 s, and ends the wait after --distributed.start-seconds."""
    seconds = time.monotonic() - start
    if seconds > config.start_seconds:
        raise RequeueError(
            f"the learner processes did not all come to {config.coordinator} within {config.start_seconds} s: it {waits}; start "
            f"the same command at every process, each with its own --distributed.process-id, and see that process 0 can be "
            f"reached at that address"
        )
    if seconds % _SAY_SECONDS < _LOOK_SECONDS and seconds > 1.0:
        show_line(f"{waits} for {seconds:.0f} s")


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Returns the next message.

    Raises:
        OSError: the other side has ended.
    """
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part or len(data) > _MOST_BYTES:
            raise ConnectionResetError("the connection ended")
        data += part
    return json.loads(data)
