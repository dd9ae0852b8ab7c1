"""Requests to a run that trains, and its answers: files in its directory. Neither side opens a port.

A run that can be controlled has a session: a file with a new identifier for each process of the run. Requests name their session,
and a run removes all files of earlier sessions when it starts. A request to a killed run is therefore never applied later.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG, LOCK, write_json
from jaxsrl.runs.state import is_locked

CONTROL = "control"
TIMEOUT_SECONDS = 60.0
TRAINING, PAUSED = "training", "paused"
ACTIONS = ("status", "pause", "resume", "save", "stop", "set")
_SESSION, _REQUEST, _ANSWER = "session.json", "request-", "answer-"
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Request:
    """An order to a run.

    Attributes:
        action: one of `ACTIONS`.
        name: Name of the value to set.
        value: Value to set.
    """

    action: str
    name: str = ""
    value: float = 0.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """Answer of a run.

    Attributes:
        error: why the run did not do it; "" if it did.
        text: a sentence on what it did.
        status: Status of the run afterwards: state, update, env steps, and values that may change.
    """

    error: str = ""
    text: str = ""
    status: dict[str, Any] = dataclasses.field(default_factory=dict)


class ControlFiles:
    """The run's side of its requests. Thread-safety: one thread. Failed writes lose an answer and never end the run.

    The constructor removes requests and answers of earlier sessions.

    Args:
        directory: run directory, which this process holds.
    """

    def __init__(self, directory: Path) -> None:
        self._path, self._id = directory / CONTROL, secrets.token_hex(8)
        with contextlib.suppress(OSError):
            self._path.mkdir(exist_ok=True)
            for file in self._path.iterdir():
                if file.name.lstrip(".").startswith((_SESSION, _REQUEST, _ANSWER)):
                    file.unlink()
        self.write_state(TRAINING)

    def write_state(self, state: str) -> None:
        """Writes the session with the present state: training or paused."""
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        with contextlib.suppress(OSError):
            write_json(self._path / _SESSION, {"id": self._id, "holder": holder, "state": state})

    def take(self) -> list[tuple[str, Request | None]]:
        """Returns new requests by identifier, oldest first, and removes them; None for one that is not readable."""
        taken: list[tuple[float, str, Request | None]] = []
        with contextlib.suppress(OSError):
            for path in self._path.glob(f"{_REQUEST}*.json"):
                changed, data = path.stat().st_mtime, path.read_bytes()
                path.unlink()  # fails if the command has withdrawn it
                taken.append((changed, path.stem.removeprefix(_REQUEST), self._parse(data)))
        return [(name, request) for _, name, request in sorted(taken, key=lambda each: each[:2])]

    def answer(self, name: str, answer: Answer) -> None:
        """Writes the answer to a request."""
        with contextlib.suppress(OSError):
            write_json(self._path / f"{_ANSWER}{name}.json", dataclasses.asdict(answer))

    def close(self) -> None:
        """Ends the session: waiting commands report that the run has ended."""
        with contextlib.suppress(OSError):
            (self._path / _SESSION).unlink()

    def _parse(self, written: bytes) -> Request | None:
        try:
            data = json.loads(written)
            if data.pop("session") != self._id:
                return None
            return Request(str(data["action"]), str(data["name"]), float(data["value"]))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


def control_state(directory: Path) -> str | None:
    """Returns whether a run is training or paused; None if it accepts no requests."""
    session = _read_session(directory)
    return None if session is None else session["state"]


def send_request(directory: Path, request: Request, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer:
    """Sends a request to the process that trains a run, and waits for its answer.

    Args:
        directory: run directory.
        request: Request to send.
        timeout_seconds: longest wait until the run takes the request, and again until it has answered.

    Raises:
        UserError: If there is no such run, it does not train now, it ended or did not answer, or it rejects the request.
    """
    if not (directory / LOCK).exists() and not (directory / CONFIG).exists():
        raise UserError(
            f"there is no run in {directory}: expected a run directory, for example one that `jaxsrl runs` lists"
        )
    deadline = time.monotonic() + timeout_seconds
    session = _wait_for_session(directory, deadline)
    place, name = directory / CONTROL, f"{time.time_ns()}-{secrets.token_hex(4)}"
    sent, answered = place / f"{_REQUEST}{name}.json", place / f"{_ANSWER}{name}.json"
    write_json(sent, {"session": session["id"], **dataclasses.asdict(request)})
    try:
        _wait_for_answer(directory, session["id"], sent, answered, timeout_seconds)
        answer = Answer(**json.loads(answered.read_text()))
    finally:
        for path in (sent, answered):
            path.unlink(missing_ok=True)
    if answer.error:
        raise UserError(answer.error)
    return answer


def _wait_for_session(directory: Path, deadline: float) -> dict[str, str]:
    while (session := _read_session(directory)) is None:
        if not is_locked(directory / LOCK):
            raise UserError(
                f"the run {directory} does not train now: only a run that trains is controlled; `jaxsrl train` resumes it"
            )
        if time.monotonic() > deadline:
            raise UserError(f"the run {directory} has not started its first update yet: try again later")
        time.sleep(_POLL_SECONDS)
    return session


def _wait_for_answer(directory: Path, session: str, sent: Path, answered: Path, timeout_seconds: float) -> None:
    deadline, is_taken = time.monotonic() + timeout_seconds, False
    while not answered.exists():
        now = _read_session(directory)
        if (now is None or now["id"] != session) and not answered.exists():
            raise UserError(f"the run {directory} ended before it answered; a later run does not apply the request")
        if not is_taken and not sent.exists():
            is_taken, deadline = True, time.monotonic() + timeout_seconds
        if time.monotonic() > deadline and (is_taken or _withdraw(sent)):
            problem = "took the request but did not answer" if is_taken else "did not take the request, now withdrawn,"
            raise UserError(
                f"the run {directory} {problem} within {timeout_seconds:g} s: it answers between two updates; use a longer "
                f"--timeout-seconds if an update or a checkpoint takes longer"
            )
        time.sleep(_POLL_SECONDS)


def _withdraw(sent: Path) -> bool:
    """Removes a request; returns False if the run has just taken it."""
    try:
        sent.unlink()
    except FileNotFoundError:
        return False
    return True


def _read_session(directory: Path) -> dict[str, str] | None:
    """Returns the session of the process that holds the run directory; None if it has none."""
    try:
        session = json.loads((directory / CONTROL / _SESSION).read_bytes())
        lock = (directory / LOCK).read_text(errors="replace")
        session = {name: str(session[name]) for name in ("id", "holder", "state")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    holder = session["holder"]
    is_here = holder.endswith(f" on {socket.gethostname()}")
    # The locks of another machine are not visible here; a deadline covers a process that ended there.
    is_held = lock.startswith(f"{holder},") and (not is_here or is_locked(directory / LOCK))
    return session if is_held else None
