"""Failpoints: calls at which a worker can be made to fail, for tests of the recovery.

`JAXSRL_FAILPOINT=name:action@count` makes every worker process do `action` at the `count`-th arrival at `name`. Commas separate
several. Each place is a method that the worker wraps only if the variable is set, so that failpoints cost nothing otherwise.

| name | just before it | just after it |
|---|---|---|
| `worker.step` | actions are posted, nothing is stepped | the slot is written, nothing is published |
| `worker.reset` | no environment has started its first episode | all have |
| `worker.commit` | a slot is full, but not committed | the learner may read it, its bell has not rung |
| `worker.open_slot` | the slot before is committed | the next observation is published |
| `worker.carry` | the next slot's first observation is missing | it is written, the slot's flags are not |
| `worker.post_observation` | the observation is written | it is published, no bell has rung |
| `worker.inference_bell`, `worker.learner_bell` | published, not rung | rung |

A name ends with `.before` or `.after`. Actions: `kill` (SIGKILL), `exit` (status 3), `raise` (FailpointError), `hang` (in C, with
the interpreter's lock held), `stop` (SIGSTOP).
"""

import ctypes
import dataclasses
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envpool_bridge.errors import UserError

VARIABLE = "JAXSRL_FAILPOINT"
EXIT_STATUS = 3
PLACES = (
    *("worker.step", "worker.reset", "worker.commit", "worker.open_slot", "worker.carry", "worker.post_observation"),
    *("worker.inference_bell", "worker.learner_bell"),
)
ACTIONS = ("kill", "exit", "raise", "hang", "stop")
_FORM = re.compile(r"([a-z_.]+)\.(before|after):([a-z]+)@([0-9]+)")


class FailpointError(RuntimeError):
    """Raised by the action `raise`."""


@dataclasses.dataclass(frozen=True)
class Failpoint:
    """Entry of the variable.

    Attributes:
        place: one of PLACES.
        before: whether to fail before the call rather than after it.
        action: one of ACTIONS.
        count: arrival at which it fails, from 1.
    """

    place: str
    before: bool
    action: str
    count: int


def wanted(value: str | None = None) -> list[Failpoint]:
    """Returns the failpoints in `value`, or in the environment variable if None.

    Raises:
        UserError: If the value does not have the form above.
    """
    text = os.environ.get(VARIABLE, "") if value is None else value
    return [_parse(entry) for entry in text.split(",") if entry]


def _parse(entry: str) -> Failpoint:
    match = _FORM.fullmatch(entry.strip())
    if match is None or match[1] not in PLACES or match[3] not in ACTIONS or int(match[4]) < 1:
        raise UserError(
            f"{VARIABLE}: expected place.before:action@count or place.after:action@count with a place of {', '.join(PLACES)}, "
            f"an action of {', '.join(ACTIONS)} and a count from 1: got {entry!r}"
        )
    return Failpoint(match[1], match[2] == "before", match[3], int(match[4]))


def arm(failpoints: Sequence[Failpoint], places: Mapping[str, Sequence[tuple[Any, str]]]) -> None:
    """Wraps the methods at the failpoints' places.

    Args:
        failpoints: Failpoints to arm.
        places: (object, name of its method) of each place; methods of one place share their count.
    """
    for failpoint in failpoints:
        arrivals = itertools.count(1)
        for owner, name in places[failpoint.place]:
            setattr(owner, name, _wrapped(getattr(owner, name), failpoint, arrivals))


def _wrapped(method: Callable[..., Any], failpoint: Failpoint, arrivals: Iterator[int]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if failpoint.before and next(arrivals) == failpoint.count:
            fail(failpoint.action)
        result = method(*args, **kwargs)
        if not failpoint.before and next(arrivals) == failpoint.count:
            fail(failpoint.action)
        return result

    return wrapped


def fail(action: str) -> None:
    """Makes this process fail by one of ACTIONS."""
    if action == "raise":
        raise FailpointError("a failpoint was reached")
    if action == "exit":
        os._exit(EXIT_STATUS)
    if action == "hang":
        while True:  # a signal ends the sleep
            ctypes.PyDLL(None).sleep(3600)
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)
