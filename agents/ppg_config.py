"""Hyper-parameters of PPG."""

import dataclasses

from agents.ops import schedules
from agents.transforms.normalization import NormalisationConfig
from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class PPGConfig:
    """Hyper-parameters; defaults of the paper's Procgen experiments (appendix A), except that rewards are not scaled.

    Attributes:
        learning_rate: Adam's in the policy phase, at the start.
        learning_rate_schedule: of both learning rates: "constant", or "linear" to 0 after `total_updates`.
        total_updates: updates of the whole run, for the schedule.
        rollout_length: T of the trajectories that are kept: `run.rollout_length`.
        num_rows: B of the trajectories that are kept: `run.num_envs`.
        discount: g.
        gae_lambda: lambda of GAE.
        clip_epsilon: how far the probability ratio counts.
        value_coef: weight of the value error in the policy phase.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: gradients are scaled down to this global norm, in both phases.
        num_epochs: passes over a trajectory in the policy phase, for policy and value: the paper's E_pi and E_V, both 1.
        num_minibatches: gradient steps of such a pass; divides T.
        normalise_advantage: standardise advantages in each minibatch.
        num_policy_phases: updates from one auxiliary phase to the next.
        num_auxiliary_epochs: passes of an auxiliary phase over all trajectories since the last one.
        num_auxiliary_minibatches: gradient steps of such a pass for each trajectory; divides T.
        auxiliary_learning_rate: Adam's in the auxiliary phase, at the start.
        clone_coef: weight of KL(old policy || policy) in the auxiliary phase.
        adam_epsilon: of both optimizers.
        normalisation: of observations and rewards by running statistics; off by default, while the paper scales rewards.
    """

    learning_rate: float = 5e-4
    learning_rate_schedule: schedules.Kind = "constant"
    total_updates: int = 0
    rollout_length: int = 32
    num_rows: int = 128
    discount: float = 0.999
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    num_epochs: int = 1
    num_minibatches: int = 8
    normalise_advantage: bool = True
    num_policy_phases: int = 32
    num_auxiliary_epochs: int = 6
    num_auxiliary_minibatches: int = 16
    auxiliary_learning_rate: float = 5e-4
    clone_coef: float = 1.0
    adam_epsilon: float = 1e-5
    normalisation: NormalisationConfig = dataclasses.field(default_factory=NormalisationConfig)

    def __post_init__(self) -> None:
        counts = ("num_epochs", "num_minibatches", "num_policy_phases", "num_auxiliary_epochs")
        for name in (*counts, "num_auxiliary_minibatches", "rollout_length", "num_rows"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")
        for name in ("discount", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} must lie in [0, 1]: got {getattr(self, name)}")
        for name in ("learning_rate", "auxiliary_learning_rate", "clip_epsilon", "max_grad_norm"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        if self.clone_coef < 0.0:
            raise UserError(f"clone_coef must not be negative: got {self.clone_coef}")
        self._require_division()

    def _require_division(self) -> None:
        for name in ("num_minibatches", "num_auxiliary_minibatches"):
            if self.rollout_length % getattr(self, name):
                raise UserError(
                    f"{name} must divide rollout_length: got {getattr(self, name)} and {self.rollout_length}; minibatches "
                    "are cut along time"
                )

    @property
    def num_gradient_steps(self) -> int:
        """Gradient steps of one policy phase."""
        return self.num_epochs * self.num_minibatches

    @property
    def num_auxiliary_steps(self) -> int:
        """Gradient steps of one auxiliary phase."""
        return self.num_auxiliary_epochs * self.num_policy_phases * self.num_auxiliary_minibatches
