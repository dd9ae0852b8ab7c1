"""Hyper-parameters that DDPG, TD3 and SAC share."""

import dataclasses

from agents.api import ReplayConfig
from agents.ops.target_update import require_step_size
from envpool_bridge.errors import UserError

ONE_STEP_REPLAY = ReplayConfig(capacity=1_000_000, batch_size=256, min_size=10_000, samples_per_insert=256.0)
"""One gradient step on 256 transitions for each env step after the first 10,000, from the newest million."""


@dataclasses.dataclass(frozen=True)
class ContinuousConfig:
    """Hyper-parameters of every such agent.

    Attributes:
        replay: sizes, rates and priorities of the memory.
        total_updates: trajectories of the whole run; only priorities need it, whose correction grows over the run.
        discount: g.
        n_step: rewards that are summed before a value follows; off-policy for more than 1.
        target_step_size: tau, how far target networks go towards the newest ones at each of their steps.
        actor_learning_rate: Adam's.
        critic_learning_rate: Adam's.
        random_updates: trajectories that are collected by uniformly random actions; None: all before the first gradient step.
        importance_exponent: beta of prioritised replay at the start of the run, linearly to 1 at its end; without priorities it
            does nothing.
    """

    replay: ReplayConfig = ONE_STEP_REPLAY
    total_updates: int = 0
    discount: float = 0.99
    n_step: int = 1
    target_step_size: float = 0.005
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    random_updates: int | None = None
    importance_exponent: float = 0.4

    def __post_init__(self) -> None:
        for name in ("actor_learning_rate", "critic_learning_rate"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        for name in ("discount", "importance_exponent"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} must lie in [0, 1]: got {getattr(self, name)}")
        if self.n_step < 1:
            raise UserError(f"n_step must be at least 1: got {self.n_step}")
        if self.random_updates is not None and self.random_updates < 0:
            raise UserError(
                f"random_updates must not be negative, or None for all before the first gradient step: got "
                f"{self.random_updates}"
            )
        require_step_size("target_step_size", self.target_step_size)
