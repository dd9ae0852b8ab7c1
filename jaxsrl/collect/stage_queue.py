"""Stages of the next trajectories of a run, so that a change takes effect at the same step whatever the timing."""

from collections import deque
from collections.abc import Sequence

from jaxsrl.plan.fragment import InProcess
from jaxsrl.plan.plan import Plan


class StageQueue:
    """Stage of each trajectory that may be collected already, and of those after them.

    Workers may fill a ring of slots ahead of the learner. A change therefore applies to the first trajectory for which no slot
    is free yet (`stage_delay`).

    Args:
        stages: Stages of the next trajectories, then of those after them.

    Attributes:
        later: stage of the trajectories after those that may be collected already.
    """

    def __init__(self, stages: Sequence[int]) -> None:
        *ahead, self.later = stages
        self._ahead = deque(ahead)

    @property
    def stages(self) -> tuple[int, ...]:
        """Stages of the next trajectories, then of those after them, as the constructor takes them."""
        return (*self._ahead, self.later)

    def take(self) -> int:
        """Returns the stage of the next trajectory. The trajectory that its slot is used for next gets the newest stage."""
        self._ahead.append(self.later)
        return self._ahead.popleft()

    def resize(self, delay: int) -> None:
        """Adapts to another number of trajectories before a change applies."""
        ahead = list(self._ahead)[:delay]
        self._ahead = deque(ahead + [self.later] * (delay - len(ahead)))


def stage_delay(plan: Plan) -> int:
    """Returns the number of trajectories after which a change of the stage applies.

    The serial plan, which has no ring, waits as long as the rings of other plans make them wait.
    """
    is_serial = isinstance(plan.environments.placement, InProcess)
    return plan.max_policy_lag + 2 if is_serial else plan.shape.num_slots
