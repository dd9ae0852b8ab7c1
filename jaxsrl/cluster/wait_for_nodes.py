"""Waiting for the nodes of a cluster that is still starting, where the run says how many hosts it wants."""

import time
from collections.abc import Callable, Sequence

from envpool_bridge.errors import UserError
from jaxsrl.machine.resources import Node
from jaxsrl.plan.plan import Plan

_LOOK_SECONDS = 0.5
_ROOM = 1 << 20  # cores: more than anybody asks for


def nodes_in_time(
    look: Callable[[], tuple[Node, ...]], place: Callable[[Sequence[Node]], Plan], hosts: int, seconds: float
) -> tuple[Node, ...]:
    """Returns the nodes of a cluster as soon as there is a plan on them.

    Args:
        look: at the nodes that there are now.
        place: makes a plan on nodes.
        hosts: that it has.
        seconds: that are waited.

    Raises:
        UserError: of `place`: at once what it would say of any cluster, in the end what it says of these nodes.
    """
    place([Node(f"any{number}", _ROOM, _ROOM) for number in range(hosts)])
    deadline = time.monotonic() + seconds
    while True:
        nodes = look()
        try:
            place(nodes)
        except UserError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return nodes
