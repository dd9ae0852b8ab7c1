"""Room for all environment hosts of a run on a Ray cluster: one placement group, which a run gets as a whole or not at all.

The group belongs to the job of the process that made it, so that Ray removes it, with the actors in it, however that process ends.
When a node dies Ray reserves its bundles anew on another node, or on the next one that joins.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.cluster.bundles import Bundle, Reserving, match_bundles, refusal
from jaxsrl.dataflow.resources import Node

_STATES_WITH_ROOM = ("CREATED", "RESCHEDULING")  # while it is rescheduled, bundles of living nodes are where they were


class HostGroup:
    """The room that is reserved for each host of a run. One thread.

    Attributes:
        bundle: what each host has.
        bundle_of_host: number of the bundle that each host has.
    """

    def __init__(self, group: Any, bundle: Bundle, bundle_of_host: Sequence[int]) -> None:
        """Of a placement group that has been made."""
        self._group, self.bundle, self.bundle_of_host = group, bundle, tuple(bundle_of_host)

    @staticmethod
    def of_other_process(ray: Any, hex_id: str, bundle: Bundle, bundle_of_host: Sequence[int]) -> "HostGroup":
        """The group that another process of the same cluster made, and told of."""
        groups = importlib.import_module("ray.util.placement_group")
        return HostGroup(groups.PlacementGroup(ray.PlacementGroupID(bytes.fromhex(hex_id))), bundle, bundle_of_host)

    @property
    def hex_id(self) -> str:
        """Ray's name for it, which other processes find it by."""
        return str(self._group.id.hex())

    def node_id(self, host: int) -> str | None:
        """Ray's id of the node on which room for the host is reserved; None while there is none."""
        found = placed_on(self._table())
        return found.get(self.bundle_of_host[host])

    def options(self, host: int) -> dict[str, Any]:
        """Options of a Ray actor that takes all of the host's room."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        strategy = strategies.PlacementGroupSchedulingStrategy(
            self._group, self.bundle_of_host[host], placement_group_capture_child_tasks=False
        )
        found: dict[str, Any] = {"num_cpus": self.bundle.cores, "scheduling_strategy": strategy}
        return {**found, "memory": self.bundle.memory_bytes} if self.bundle.memory_bytes else found

    def remove(self) -> None:
        """Gives the room back, and ends whatever is in it."""
        importlib.import_module("ray.util.placement_group").remove_placement_group(self._group)

    def _table(self) -> dict[str, Any]:
        return importlib.import_module("ray.util.placement_group").placement_group_table(self._group)


@contextlib.contextmanager
def reserved(
    ray: Any,
    bundles: Sequence[Bundle],
    how: Reserving,
    nodes: Callable[[], Sequence[Node]],
    name_of: Callable[[str], str],
) -> Iterator[HostGroup]:
    """Room for all of these hosts, given back at the end.

    Args:
        ray: the module.
        bundles: one a host.
        how: to ask.
        nodes: of the cluster, for the message.
        name_of: Ray's id of a node: our name.

    Raises:
        UserError: there was no room for all of them in time.
    """
    groups = importlib.import_module("ray.util.placement_group")
    made = groups.placement_group([bundle.resources() for bundle in bundles], strategy=how.spreading.upper())
    group = HostGroup(made, bundles[0], range(len(bundles)))
    try:
        if not made.wait(how.wait_seconds):
            free = float(ray.available_resources().get("CPU", 0.0))
            raise UserError(refusal(bundles, how, nodes(), free))
        at = placed_on(groups.placement_group_table(made))
        names = [name_of(at[bundle]) for bundle in range(len(bundles))]
        group.bundle_of_host = match_bundles([bundle.node for bundle in bundles], names)
        yield group
    finally:
        with contextlib.suppress(Exception):  # the cluster may be gone, and the group with it
            group.remove()


def placed_on(table: dict[str, Any]) -> dict[int, str]:
    """Ray's id of the node of each bundle that has one; `table` is of `ray.util.placement_group_table`."""
    if table.get("state") not in _STATES_WITH_ROOM:
        return {}
    return {int(bundle): node for bundle, node in table["bundles_to_node_id"].items() if node}
