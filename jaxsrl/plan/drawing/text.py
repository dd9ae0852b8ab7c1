"""Text for tables and drawings of plans."""

import dataclasses
from typing import TYPE_CHECKING

from jaxsrl.plan.fragment import Carries, Channel, Devices, Fragment, InProcess, Placement, Processes
from jaxsrl.plan.plan import Plan
from jaxsrl.terminal.format import format_bytes, format_ranges

if TYPE_CHECKING:
    from jaxsrl.plan.cost.channel_bytes import PlanBytes  # which imports jax: the web page draws plans without it


def format_placement(fragment: Fragment, platform: str) -> str:
    """Returns the placement of a fragment.

    Args:
        fragment: Fragment of a plan.
        platform: what jax's default platform is, for placements that do not name theirs.
    """
    placement = fragment.placement
    each = " each" if fragment.replicas > 1 else ""
    if fragment.nodes:
        here = dataclasses.replace(fragment, nodes=(), replicas=1)
        return f"{format_placement(here, platform)}{each} on {', '.join(fragment.nodes)}"
    match placement:
        case InProcess():
            return "main process"
        case Processes():
            processes = f"{_count(placement.count, 'process', 'processes')}{each}"
            return f"{processes} on cores {format_ranges(placement.cores)}" if placement.cores else processes
        case Devices():
            where = f"{placement.platform or platform} {format_ranges(placement.indices)}"
            if fragment.replicas == 1:
                return where
            share = len(placement.indices) // fragment.replicas
            return f"{where}, {share} each" if share else f"{where}, shared"


def format_group(placement: Placement, platform: str) -> str:
    """Returns the kind of place, which fragments that share it are drawn in."""
    match placement:
        case InProcess():
            return "main process"
        case Processes():
            return "host processes"
        case Devices():
            return f"{placement.platform or platform} devices"


def format_lag(channel: Channel) -> str:
    """Returns the staleness bound of a channel; "" for content without versions."""
    if channel.carries not in (Carries.PARAMETERS, Carries.GRADIENTS, Carries.PRIORITIES):
        return ""
    return f"lag {channel.max_lag}" if channel.max_lag <= 1 else f"lag up to {channel.max_lag}"


def format_slots(plan: Plan, sizes: "PlanBytes") -> str:
    """Returns the number of trajectory slots and their memory."""
    replicas = plan.environments.replicas
    each = f" x {replicas} replicas" if replicas > 1 else ""
    match plan.environments.placement:
        case Processes():
            memory = "shared memory" + (" of the nodes" if plan.environments.nodes else "")
        case Devices():
            memory = "device memory"
        case InProcess():
            memory = "the main process's memory"
    slots = _count(plan.shape.num_slots, "slot", "slots")
    return (
        f"{slots}{each} of {format_bytes(sizes.slot)}: {format_bytes(sizes.slots)} ({sizes.slots:,} bytes) of {memory}"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
