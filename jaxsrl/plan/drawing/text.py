"""Plans in words, for tables and drawings."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxsrl.plan.fragment import Carries, Channel, Devices, Fragment, InProcess, Placement, Processes
from jaxsrl.plan.plan import Plan

if TYPE_CHECKING:
    from jaxsrl.plan.cost.channel_bytes import PlanBytes  # which imports jax: the web page draws plans without it


def placement_in_words(fragment: Fragment, platform: str) -> str:
    """Where a fragment runs.

    Args:
        fragment: of a plan.
        platform: what jax's default platform is, for placements that do not name theirs.
    """
    placement = fragment.placement
    each = " each" if fragment.replicas > 1 else ""
    if fragment.nodes:
        here = dataclasses.replace(fragment, nodes=(), replicas=1)
        return f"{placement_in_words(here, platform)}{each} on {', '.join(fragment.nodes)}"
    match placement:
        case InProcess():
            return "main process"
        case Processes():
            processes = f"{_count(placement.count, 'process', 'processes')}{each}"
            return f"{processes} on cores {ranges(placement.cores)}" if placement.cores else processes
        case Devices():
            where = f"{placement.platform or platform} {ranges(placement.indices)}"
            if fragment.replicas == 1:
                return where
            share = len(placement.indices) // fragment.replicas
            return f"{where}, {share} each" if share else f"{where}, shared"


def group_in_words(placement: Placement, platform: str) -> str:
    """The kind of place, which fragments that share it are drawn in."""
    match placement:
        case InProcess():
            return "main process"
        case Processes():
            return "host processes"
        case Devices():
            return f"{placement.platform or platform} devices"


def lag_in_words(channel: Channel) -> str:
    """How far behind its reader may be; "" for what has no versions."""
    if channel.carries not in (Carries.PARAMETERS, Carries.GRADIENTS, Carries.PRIORITIES):
        return ""
    return f"lag {channel.max_lag}" if channel.max_lag <= 1 else f"lag up to {channel.max_lag}"


def slots_in_words(plan: Plan, sizes: "PlanBytes") -> str:
    """How many trajectory slots there are, and whose memory they take."""
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
    return f"{slots}{each} of {bytes_in_words(sizes.slot)}: {bytes_in_words(sizes.slots)} ({sizes.slots:,} bytes) of {memory}"


def bytes_in_words(number: int) -> str:
    """Bytes with a binary unit and three digits: 640 B, 1.25 MiB.

    Examples:
        >>> bytes_in_words(640), bytes_in_words(1_310_720)
        ('640 B', '1.25 MiB')
    """
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{number} B" if unit == "B" else f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"


def ranges(numbers: Sequence[int]) -> str:
    """0-3, 6 for (0, 1, 2, 3, 6).

    Examples:
        >>> ranges((0, 1, 2, 3, 6))
        '0-3, 6'
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
