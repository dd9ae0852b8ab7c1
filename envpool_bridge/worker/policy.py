"""A policy inside a worker: it acts for the rows that the worker steps, in turn with stepping them.

Nothing else acts for such a pool: the worker is then the one writer of its lanes' `acted` counters.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, SlotLayout
from envpool_bridge.shm.slots import ActRows


class LocalPolicy(Protocol):
    """Acts for the parts of one worker. One thread, the worker's."""

    def may_act(self, sequence: int) -> bool:
        """Whether the parameters for this slot sequence are there; cheap, asked in a loop while the worker waits."""
        ...

    def act(self, part: int, step: int, rows: ActRows) -> bool:
        """Writes action, extras and policy version of one part at one step of the run.

        Steps of a part come in order, each until it was acted for.

        Returns:
            False, with nothing written, if the parameters for the step's slot sequence are not there yet.
        """
        ...


class MakeLocalPolicy(Protocol):
    """Makes a worker's policy, ready to act: whatever is slow the first time is done here, before environments are made.

    Args: layout of the segment; worker, its index; parts, the rows (of the run) of each part the worker serves; descriptors,
    those of LocalPolicySpec in the same order, owned by the policy from now on.
    """

    def __call__(
        self, layout: SlotLayout, worker: int, parts: Mapping[int, range], descriptors: Sequence[int]
    ) -> LocalPolicy:
        """The policy."""
        ...


@dataclasses.dataclass(frozen=True)
class LocalPolicySpec:
    """How the workers of a pool come to their policies.

    Attributes:
        factory: a pickled MakeLocalPolicy, that `pickle.loads` can load in a process that has imported nothing.
        descriptors: open files that the policies need, shared memory of parameters say; the workers receive copies.
        may_act: whether the parameters for a slot sequence are there, asked in the parent, from any thread: a worker that has an
            observation and does not act for it then hangs. Without it that is not noticed.
    """

    factory: bytes
    descriptors: tuple[int, ...] = ()
    may_act: Callable[[int], bool] | None = None


def check_shape(shape: PoolShape) -> None:
    """Refuses a pool whose workers cannot act themselves.

    Raises:
        UserError: several workers share a lane, whose actions have one writer.
    """
    if shape.workers_per_lane != 1:
        raise UserError(
            f"workers that act themselves need a lane of their own: expected workers_per_lane 1, got "
            f"{shape.workers_per_lane}: use --run.workers-per-lane 1"
        )
