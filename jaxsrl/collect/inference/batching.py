"""Grouping of ready lanes into inference calls of compiled sizes. Pure functions."""

import dataclasses
from collections.abc import Sequence
from typing import Generic, TypeVar


@dataclasses.dataclass(frozen=True)
class Request:
    """Lane whose observation awaits an action.

    Attributes:
        lane: index of the lane.
        step: step of the run.
    """

    lane: int
    step: int


RequestT = TypeVar("RequestT", bound=Request)


@dataclasses.dataclass(frozen=True)
class Group(Generic[RequestT]):
    """Lanes that one call serves.

    Attributes:
        requests: requests in lane order.
        contiguous: whether their rows are one block of one slot row, which is read in place.
        padded_lanes: number of lanes the call is compiled for, at least `len(requests)`.
    """

    requests: tuple[RequestT, ...]
    contiguous: bool
    padded_lanes: int

    @property
    def lanes(self) -> tuple[int, ...]:
        """Lanes of the requests."""
        return tuple([request.lane for request in self.requests])


def compiled_sizes(num_lanes: int) -> list[int]:
    """Returns the numbers of lanes that calls are compiled for: powers of two, and all lanes."""
    sizes = [1]
    while sizes[-1] * 2 < num_lanes:
        sizes.append(sizes[-1] * 2)
    return sizes if num_lanes == 1 else [*sizes, num_lanes]


def group_requests(requests: Sequence[RequestT], num_lanes: int, merge: bool) -> list[Group[RequestT]]:
    """Groups requests; each group is one call.

    Args:
        requests: ready lanes.
        num_lanes: lanes of the pool.
        merge: False serves every lane in a call of its own. Calls of fixed shape make results independent of timing, bit for
            bit. True serves all lanes in one call.
    """
    ordered = sorted(requests, key=lambda request: request.lane)
    if not merge:
        return [Group((request,), True, 1) for request in ordered]
    if not ordered:
        return []
    first = ordered[0]
    padded = next(size for size in compiled_sizes(num_lanes) if size >= len(ordered))
    in_place = padded == len(ordered) and all(
        request.lane == first.lane + index and request.step == first.step for index, request in enumerate(ordered)
    )
    return [Group(tuple(ordered), in_place, padded)]
