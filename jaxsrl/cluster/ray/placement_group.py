"""Room for all that a run has on a Ray cluster: placement groups, which it gets as a whole or not at all.

Hosts, and what else the run has there, share one group, which Ray makes at once. Only where hosts are to be strictly apart, or
strictly together, do the others have a group of their own: Ray has one such rule a group.

A group belongs to the job of the process that made it, so that Ray removes it, with the actors in it, however that process ends.
When a node dies Ray reserves its bundles on another node, or on the next one that joins.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import importlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.cluster.protocol.bundles import Bundle, Reserving, match_bundles, placement_error
from jaxsrl.machine.lifecycle import call_in_thread
from jaxsrl.machine.resources import Node

HOLD_SECONDS = 5.0
"""Longest that one group is held while the next is waited for."""

_PAUSE_SECONDS = (0.5, 2.0)  # before the next attempt; random, so that two processes do not retry in step
_RANDOM = random.Random()  # not the module's own, whose numbers may be a user's
_REMOVE_SECONDS = 5.0
_STATES_WITH_ROOM = ("CREATED", "RESCHEDULING")  # while it is rescheduled, bundles of living nodes are where they were


class HostGroup:
    """The room that is reserved for each host of a run, or for each of another kind that it has on nodes. One thread.

    Attributes:
        bundle: what each host has.
        bundle_of_host: number of the bundle that each host has, in the placement group.
    """

    def __init__(self, group: Any, bundle: Bundle, bundle_of_host: Sequence[int]) -> None:
        self._group, self.bundle, self.bundle_of_host = group, bundle, tuple(bundle_of_host)

    @staticmethod
    def of_other_process(ray: Any, hex_id: str, bundle: Bundle, bundle_of_host: Sequence[int]) -> "HostGroup":
        """Returns the group of that name, which another process of the same cluster made."""
        groups = importlib.import_module("ray.util.placement_group")
        return HostGroup(groups.PlacementGroup(ray.PlacementGroupID(bytes.fromhex(hex_id))), bundle, bundle_of_host)

    @property
    def hex_id(self) -> str:
        """Ray's name for it, which other processes find it by."""
        return str(self._group.id.hex())

    def node_id(self, host: int) -> str | None:
        """Returns the Ray id of the node with the host's bundle; None while there is none."""
        table = importlib.import_module("ray.util.placement_group").placement_group_table(self._group)
        return placed_on(table).get(self.bundle_of_host[host])

    def options(self, host: int) -> dict[str, Any]:
        """Returns the options of a Ray actor that takes the whole bundle of the host."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        strategy = strategies.PlacementGroupSchedulingStrategy(
            self._group, self.bundle_of_host[host], placement_group_capture_child_tasks=False
        )
        options: dict[str, Any] = {"num_cpus": self.bundle.cores, "scheduling_strategy": strategy}
        return {**options, "memory": self.bundle.memory_bytes} if self.bundle.memory_bytes else options


@contextlib.contextmanager
def reserved(
    ray: Any,
    kinds: Sequence[Sequence[Bundle]],
    how: Reserving,
    nodes: Callable[[], Sequence[Node]],
    name_of: Callable[[str], str],
) -> Iterator[tuple[HostGroup, ...]]:
    """Reserves all of these bundles and, at the end, frees them with all that runs in them.

    Args:
        ray: the module.
        kinds: one bundle a host, and then those of what else the run has on nodes; those of a kind are alike, and there are some.
        how: How to ask; where hosts are to be is meant of them alone.
        nodes: Nodes of the cluster, for the message.
        name_of: Ray's id of a node: our name.

    Yields:
        The room of each kind.

    Raises:
        UserError: If there was no room for all of them in time; none is held then.
    """
    groups = importlib.import_module("ray.util.placement_group")
    strategy = how.spreading.upper()
    shares = [(tuple(kinds), strategy)]
    if strategy.startswith("STRICT") and len(kinds) > 1:
        shares = [(tuple(kinds[:1]), strategy), (tuple(kinds[1:]), "SPREAD")]
    made = all_or_none([partial(_AskedGroup, groups, *share) for share in shares], how.wait_seconds)
    try:
        if not made:
            free = float(ray.available_resources().get("CPU", 0.0))
            raise UserError(placement_error(kinds, how, nodes(), free))
        yield tuple(room for group in made for room in group.rooms(name_of))
    finally:
        for group in made:
            _remove_safely(group)


class _AskedGroup:
    """A placement group that Ray was asked for."""

    def __init__(self, groups: Any, kinds: Sequence[Sequence[Bundle]], strategy: str) -> None:
        self._groups, self._kinds = groups, kinds
        bundles = [bundle.resources() for kind in kinds for bundle in kind]
        self._group = groups.placement_group(bundles, strategy=strategy)

    def wait(self, seconds: float) -> bool:
        return bool(self._group.wait(seconds))

    def remove(self) -> None:
        """Removes it, or leaves it to Ray if the head is lost."""
        remove = partial(self._groups.remove_placement_group, self._group)
        wait([call_in_thread(remove, "removes room")], _REMOVE_SECONDS)

    def rooms(self, name_of: Callable[[str], str]) -> list[HostGroup]:
        """Returns the group's bundles by kind, once the group is placed."""
        at, first, groups = placed_on(self._groups.placement_group_table(self._group)), 0, list[HostGroup]()
        for kind in self._kinds:
            names = [name_of(at[first + number]) for number in range(len(kind))]
            chosen = match_bundles([bundle.node for bundle in kind], names)
            groups.append(HostGroup(self._group, kind[0], [first + number for number in chosen]))
            first += len(kind)
        return groups


def all_or_none(asks: Sequence[Callable[[], _AskedGroup]], seconds: float) -> list[_AskedGroup]:
    """Asks for groups one after the other until all are there at once.

    None is held while the next is waited for without a limit: two runs that each held what the other waits for would both wait
    until both give up.

    Args:
        asks: each asks for one; the first is waited for holding nothing, so the largest should be that.
        seconds: Seconds in all.

    Returns:
        All of them, in order, which the caller removes; [] if they were not to be had in time, and nothing is held then.
    """
    deadline = time.monotonic() + seconds
    while True:
        held = _all_there(asks, deadline)
        left = deadline - time.monotonic()
        if held or left <= 0.0:
            return held
        time.sleep(min(left, _RANDOM.uniform(*_PAUSE_SECONDS)))


def _all_there(asks: Sequence[Callable[[], _AskedGroup]], deadline: float) -> list[_AskedGroup]:
    """Returns all groups, or [] after a try that failed, which leaves nothing behind."""
    held: list[_AskedGroup] = []
    with contextlib.ExitStack() as undone:
        for ask in asks:
            limit = max(0.0, deadline - time.monotonic())
            limit = min(limit, HOLD_SECONDS) if held else limit
            held.append(ask())
            undone.callback(_remove_safely, held[-1])
            if not held[-1].wait(limit):
                return []
        undone.pop_all()
    return held


def _remove_safely(asked: _AskedGroup) -> None:
    """Removes a group; the cluster may be gone, and the group with it."""
    with contextlib.suppress(Exception):
        asked.remove()


def placed_on(table: dict[str, Any]) -> dict[int, str]:
    """Returns the Ray id of the node of each placed bundle; `table` is of `ray.util.placement_group_table`."""
    if table.get("state") not in _STATES_WITH_ROOM:
        return {}
    return {int(bundle): node for bundle, node in table["bundles_to_node_id"].items() if node}
