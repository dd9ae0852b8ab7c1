"""How experience is kept and drawn again: plain data that a command line, a configuration file and a checkpoint can all hold."""

import dataclasses

from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Sizes, rates and priorities of a replay buffer. One env step is one step of one row.

    Attributes:
        capacity: env steps that are kept, over all rows; rounded down to whole trajectories.
        batch_size: N, windows of a sample: what one gradient step learns from.
        min_size: env steps that are inserted before the first gradient step.
        samples_per_insert: windows drawn for each env step inserted after the first `min_size` (Reverb's words). After
            i env steps exactly floor((i - min_size) * samples_per_insert / batch_size) gradient steps have been done.
        priority_exponent: alpha of proportional prioritisation (Schaul et al. 2016, eq. 1); 0 draws uniformly.
        priority_offset: added to every priority, so that none is 0.
        priority_delay: gradient steps between computing priorities and the first sample that knows them; so many samples can
            be drawn ahead of the learner.
    """

    capacity: int = 100_000
    batch_size: int = 256
    min_size: int = 1_000
    samples_per_insert: float = 8.0
    priority_exponent: float = 0.0
    priority_offset: float = 1e-6
    priority_delay: int = 0

    def __post_init__(self) -> None:
        for name in ("capacity", "batch_size", "min_size"):
            if getattr(self, name) < 1:
                raise UserError(f"replay.{name} must be at least 1: got {getattr(self, name)}")
        if not self.samples_per_insert > 0.0:
            raise UserError(f"replay.samples_per_insert must be positive: got {self.samples_per_insert}")
        if not 0.0 <= self.priority_exponent <= 1.0:
            raise UserError(f"replay.priority_exponent must lie in [0, 1]: got {self.priority_exponent}")
        if not self.priority_offset > 0.0:
            raise UserError(f"replay.priority_offset must be positive: got {self.priority_offset}")
        if self.priority_delay < 0:
            raise UserError(f"replay.priority_delay must not be negative: got {self.priority_delay}")
        if self.min_size > self.capacity:
            raise UserError(
                f"replay.min_size must not exceed replay.capacity, or learning would never begin: got {self.min_size} and "
                f"{self.capacity}"
            )
