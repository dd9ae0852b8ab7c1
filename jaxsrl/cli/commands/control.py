"""`jaxsrl control`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.runs.control import ACTIONS, TIMEOUT_SECONDS, Request, send_request


@dataclasses.dataclass(frozen=True)
class Control:
    """Pause, resume, save, stop or change a run while it trains, or show its status.

    Attributes:
        path: run directory.
        action: status, pause, resume, save, stop, or set with NAME=VALUE.
        assignment: NAME=VALUE of a value that the status lists, for the action set.
        timeout_seconds: longest wait until the run takes the request, and again until it has answered.
        json: print one JSON object instead of text.
    """

    path: tyro.conf.Positional[Path]
    action: tyro.conf.Positional[str] = "status"
    assignment: tyro.conf.Positional[str] = ""
    timeout_seconds: float = TIMEOUT_SECONDS
    json: bool = False

    def run(self) -> int:
        """Sends the request and prints the run's answer."""
        answer = send_request(self.path, parse_request(self.action, self.assignment), self.timeout_seconds)
        if self.json:
            print(json.dumps({"text": answer.text, **answer.status}))  # noqa: T201
            return 0
        print(answer.text)  # noqa: T201
        if self.action == "status":
            print(_format_status(answer.status))  # noqa: T201
        return 0


def parse_request(action: str, assignment: str) -> Request:
    """Returns the request of an action's words.

    Raises:
        UserError: If the action is unknown, or NAME=VALUE is missing, not a number, or of another action than set.
    """
    if action not in ACTIONS:
        raise UserError(f"unknown action {action!r}: expected one of {', '.join(ACTIONS)}")
    if action != "set":
        if assignment:
            raise UserError(f"action {action} takes no value: got {assignment!r}")
        return Request(action)
    name, separator, text = assignment.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = None
    if not name or not separator or value is None:
        raise UserError(
            f"set expects NAME=VALUE with a number, for example learning_rate_factor=0.5: got {assignment!r}"
        )
    return Request(action, name, value)


def _format_status(status: dict[str, Any]) -> str:
    values = [f"  {name} = {value:g}" for name, value in status["values"].items()]
    return "\n".join([f"{status['env_steps']:,} env steps", *(["values that may change:", *values] if values else [])])
