"""Requests of a vector environment to its rows, and the reports that they send back next to the shared arrays.

A request takes the place of a reset, so that the worker's loop has one kind of message for everything that is not a step.
"""

import dataclasses
import traceback
from typing import Any

import cloudpickle

from envpool_bridge.envs.protocol import GymnasiumReset


@dataclasses.dataclass(frozen=True)
class VectorRequest(GymnasiumReset):
    """Base of the requests that only `envs.vector_rows` answers."""

    seeds: tuple[int | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class StartRequest(VectorRequest):
    """First request: makes no episode, so that calls and attributes may precede the first reset."""


@dataclasses.dataclass(frozen=True)
class MaskedReset(VectorRequest):
    """Reset of some rows.

    Attributes:
        mask: true for the rows to reset; () for all rows.
        pickled_options: pickled options of each row, by row, so that rows share no object.
    """

    mask: tuple[bool, ...] = ()
    pickled_options: tuple[bytes, ...] = ()


@dataclasses.dataclass(frozen=True)
class ObjectStep(VectorRequest):
    """Step with actions that no shared array can hold.

    Attributes:
        actions: pickled list of one action for each row.
    """

    actions: bytes = b""


@dataclasses.dataclass(frozen=True)
class ApplyRequest(VectorRequest):
    """Call of a function with the environment of each row.

    Attributes:
        what: description of the call, for messages.
        functions: pickled function of each row, by row, so that rows share no object; b"" for a row without a call.
    """

    what: str = ""
    functions: tuple[bytes, ...] = ()


@dataclasses.dataclass(frozen=True)
class RowFailure:
    """Exception of one environment.

    Attributes:
        text: row, step, exception and traceback.
        error: the pickled exception; b"" if it cannot be pickled.
    """

    text: str
    error: bytes


@dataclasses.dataclass(frozen=True)
class RowReport:
    """Values of one row that no shared array holds; a plain dict of infos stands for a report with nothing else.

    Attributes:
        info: infos of the reset or step.
        observation: observation of a space that is sent as objects.
        result: pickled result of the called function.
        failure: exception of the environment in this request.
    """

    info: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    observation: Any = None
    result: bytes = b""
    failure: RowFailure | None = None


class RowsFailedError(Exception):
    """Exceptions of some rows in one request.

    Args:
        failures: Errors by row.
    """

    def __init__(self, failures: dict[int, RowFailure]) -> None:
        super().__init__(failures)
        self.failures = failures


def describe_failure(place: str, error: Exception) -> RowFailure:
    """Returns the failure of a row.

    Args:
        place: environment, row and step, for the message.
        error: exception of the environment.
    """
    try:
        pickled = cloudpickle.dumps(error)
        cloudpickle.loads(pickled)  # an exception with arguments of its own may not survive the way
    except Exception:  # noqa: BLE001  any exception of a foreign class
        pickled = b""
    lines = "".join(traceback.format_exception(error))
    return RowFailure(f"{place}: {type(error).__name__}: {error}\n\nIn the worker:\n{lines}", pickled)
