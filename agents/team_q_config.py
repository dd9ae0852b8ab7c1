"""Hyper-parameters that VDN and QMIX share."""

import dataclasses
from typing import Literal

from agents.api import ReplayConfig
from agents.ops.epsilon_greedy import Exploration
from agents.ops.target_update import require_step_size
from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class TeamQConfig:
    """Hyper-parameters; defaults of QMIX's authors' code (PyMARL) where they carry over.

    Attributes:
        learning_rate: Adam's.
        total_updates: trajectories of the whole run, for exploration and importance.
        discount: g.
        n_step: rewards of a target before it bootstraps.
        double: whether the newest values choose the actions of targets, which the target network judges.
        target_period: gradient steps after which the target network moves.
        target_step_size: how far it then moves towards what is learned: 1 copies.
        max_grad_norm: gradients are scaled down to this global norm.
        adam_epsilon: Adam's.
        share_parameters: whether all agents have the same weights, and see which of them they are.
        sequence_length: steps of a window that are learned from; more than one for a policy with memory.
        burn_in: steps before them that only bring the policy's state up to date, without gradient.
        begins: windows begin at "any" step, or where an "episode" does.
        period: steps between the beginnings of windows, of "any": with memory a multiple of the rollout length.
        importance_exponent: beta of prioritised replay at the start; it grows to 1 over the run.
        exploration: epsilon; its `ladder` is not for teams.
        replay: what is kept and how often it is learned from.
    """

    learning_rate: float = 5e-4
    total_updates: int = 0
    discount: float = 0.99
    n_step: int = 1
    double: bool = True
    target_period: int = 200
    target_step_size: float = 1.0
    max_grad_norm: float = 10.0
    adam_epsilon: float = 1e-5
    share_parameters: bool = True
    sequence_length: int = 1
    burn_in: int = 0
    begins: Literal["any", "episode"] = "any"
    period: int = 1
    importance_exponent: float = 0.4
    exploration: Exploration = dataclasses.field(default_factory=Exploration)
    replay: ReplayConfig = dataclasses.field(default_factory=lambda: ReplayConfig(batch_size=32))

    def __post_init__(self) -> None:
        for name in ("n_step", "target_period", "sequence_length", "period"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")
        for name in ("discount", "importance_exponent"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} must lie in [0, 1]: got {getattr(self, name)}")
        for name in ("learning_rate", "max_grad_norm", "adam_epsilon"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        if self.burn_in < 0:
            raise UserError(f"burn_in must not be negative: got {self.burn_in}")
        require_step_size("target_step_size", self.target_step_size)
        if self.exploration.ladder:
            raise UserError(
                f"exploration.ladder gives rows rates of their own, and a team explores with one: expected 0, got "
                f"{self.exploration.ladder}"
            )

    @property
    def window(self) -> int:
        """L, steps of a window: the last ones learned from see `n_step` rewards too."""
        return self.burn_in + self.sequence_length + self.n_step - 1
