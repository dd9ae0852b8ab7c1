"""Curriculum: conditions on evaluations that end the stages of a run's environments."""

import dataclasses

from envpool_bridge.errors import UserError
from jaxsrl.config.parts import validate_at_least


@dataclasses.dataclass(frozen=True)
class CurriculumConfig:
    """Conditions on evaluations that end the stages of the environments, `--env.stage` first.

    Attributes:
        returns: mean evaluation return that ends each stage but the last one; empty for no curriculum. `inf` for a stage that
            only `spread` or `max_env_steps` ends.
        evaluations: consecutive evaluations of a stage that must reach its return.
        spread: a stage has converged, and ends, when the mean returns of its last `evaluations` (at least 2) differ by at most
            this; 0 for never.
        max_env_steps: env steps after which a stage ends in any case; 0 for no limit.
    """

    returns: tuple[float, ...] = ()
    evaluations: int = 1
    spread: float = 0.0
    max_env_steps: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "returns", tuple(self.returns))
        validate_at_least(1, "curriculum", self, "evaluations")
        validate_at_least(0, "curriculum", self, "spread", "max_env_steps")
        if any(value != value for value in self.returns):
            raise UserError(f"curriculum.returns must be numbers: got {list(self.returns)}")
        if self.spread and self.evaluations < 2:
            raise UserError("curriculum.spread compares evaluations: use --curriculum.evaluations 2 or more with it")

    @property
    def is_on(self) -> bool:
        """Returns whether the run has a curriculum."""
        return bool(self.returns)

    def last_stage(self, first: int | None) -> int | None:
        """Returns the stage of the task itself: the last one of the curriculum, or `first` without a curriculum."""
        return first if first is None else first + len(self.returns)
