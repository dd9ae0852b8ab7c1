"""Policy inside a worker: it acts for the rows that the worker steps, alternating with steps.

No other process acts for such a pool, so the worker is the only writer of its lanes' `acted` counters.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from envpool_bridge.envs.kept_modules import KeptModules
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, SlotLayout
from envpool_bridge.shm.slots import ActRows


class LocalPolicy(Protocol):
    """Policy for the parts of one worker. One thread, the worker's."""

    def may_act(self, sequence: int) -> bool:
        """Returns whether the parameters for this slot sequence are available; cheap, evaluated in the worker's wait."""
        ...

    def act(self, part: int, step: int, rows: ActRows) -> bool:
        """Writes action, extras and policy version of one part at one step of the run.

        Steps of a part come in order; a step is repeated until the policy has acted for it.

        Returns:
            False, with nothing written, if the parameters for the step's slot sequence are not available yet.
        """
        ...


class MakeLocalPolicy(Protocol):
    """Factory of a worker's policy, ready to act: slow first-time work happens here, before environments are made.

    Arguments are the layout of the segment, the worker's index, and the rows (of the run) of each part it serves. The
    descriptors are those of LocalPolicySpec in the same order; the policy owns them from now on.
    """

    def __call__(
        self, layout: SlotLayout, worker: int, parts: Mapping[int, range], descriptors: Sequence[int]
    ) -> LocalPolicy:
        """Returns the policy."""
        ...


@dataclasses.dataclass(frozen=True)
class LocalPolicySpec:
    """Specification of the policies of a pool's workers.

    Attributes:
        factory: a pickled MakeLocalPolicy that `pickle.loads` can load in a process without imports.
        descriptors: open files for the policies, such as shared memory of parameters; the workers receive copies.
        may_act: whether the parameters for a slot sequence are available; called in the parent, from any thread. A
            worker with an observation that does not act then counts as hung. None disables this detection.
        modules: Modules that the policies use, as `fingerprint.read_modules` returns them.
    """

    factory: bytes
    descriptors: tuple[int, ...] = ()
    may_act: Callable[[int], bool] | None = None
    modules: KeptModules = dataclasses.field(default_factory=dict)


def check_shape(shape: PoolShape) -> None:
    """Validates that the workers of a pool can act themselves.

    Raises:
        UserError: several workers share a lane, whose actions have one writer.
    """
    if shape.workers_per_lane != 1:
        raise UserError(
            f"workers that act themselves need a lane of their own: expected workers_per_lane 1, got "
            f"{shape.workers_per_lane}: use --pool.workers-per-lane 1"
        )
