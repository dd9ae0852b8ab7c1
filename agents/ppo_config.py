"""Hyper-parameters of PPO."""

import dataclasses
from typing import Literal

from agents.ops import schedules
from agents.transforms.normalization import NormalisationConfig
from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Hyper-parameters; defaults of the paper's Atari and MuJoCo experiments where it gives them.

    Attributes:
        learning_rate: Adam's, at the start.
        learning_rate_schedule: "constant", or "linear" to 0 after `total_updates`.
        total_updates: updates of the whole run, for the schedule.
        discount: g.
        gae_lambda: lambda of GAE.
        clip_epsilon: how far the probability ratio counts.
        value_clip_epsilon: how far a value may move from its old one, in reward units; None does not clip.
        value_coef: weight of the value error.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: gradients are scaled down to this global norm.
        num_epochs: passes over a trajectory.
        num_minibatches: gradient steps a pass; divides T.
        normalise_advantage: standardise advantages in each minibatch.
        target_kl: once a minibatch's approximate KL (nats) exceeds it, the update's remaining steps do nothing; None: off.
        adam_epsilon: 1e-5 as in the authors' code.
        normalisation: of observations and rewards by running statistics; off by default.
        targets: "gae", or "vtrace": advantages and value targets corrected for what the policy has changed since it acted.
        vtrace_clip: rho_bar = c_bar of V-trace, the largest importance weight.
        dual_clip: c > 1: where the advantage A < 0, the surrogate is at least c A (Ye et al. 2020); None: off.
        reward_clip: rewards are clipped to [-reward_clip, reward_clip] before anything else, scaling included; None: off.
        value_normalisation: "popart" normalises value targets by running moments, and rescales the value's last layer so that
            what it predicts stays; "moments" normalises without rescaling (Yu et al. 2022); "none": values in reward units.
        value_normalisation_step: the share of a batch in those moments.
        max_staleness: steps whose policy is more updates behind than this do not count; None: all count.
        chunk_length: steps that a network with memory is unrolled with gradient; divides T; None: T.
        burn_in: steps before each chunk that are run again at every gradient step, at most `chunk_length`.
    """

    learning_rate: float = 3e-4
    learning_rate_schedule: schedules.Kind = "constant"
    total_updates: int = 0
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    value_clip_epsilon: float | None = None
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    num_epochs: int = 4
    num_minibatches: int = 4
    normalise_advantage: bool = True
    target_kl: float | None = None
    adam_epsilon: float = 1e-5
    normalisation: NormalisationConfig = dataclasses.field(default_factory=NormalisationConfig)
    targets: Literal["gae", "vtrace"] = "gae"
    vtrace_clip: float = 1.0
    dual_clip: float | None = None
    reward_clip: float | None = None
    value_normalisation: Literal["none", "popart", "moments"] = "none"
    value_normalisation_step: float = 0.05
    max_staleness: int | None = None
    chunk_length: int | None = None
    burn_in: int = 0

    def __post_init__(self) -> None:
        for name in ("num_epochs", "num_minibatches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")
        for name in ("discount", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} must lie in [0, 1]: got {getattr(self, name)}")
        for name in ("learning_rate", "clip_epsilon", "max_grad_norm", "vtrace_clip"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        self._check_options()

    def _check_options(self) -> None:
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise UserError(f"dual_clip must exceed 1: got {self.dual_clip}")
        if self.reward_clip is not None and not self.reward_clip > 0.0:
            raise UserError(f"reward_clip must be positive, or None for no clipping: got {self.reward_clip}")
        if not 0.0 < self.value_normalisation_step <= 1.0:
            raise UserError(f"value_normalisation_step must lie in (0, 1]: got {self.value_normalisation_step}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise UserError(f"max_staleness must be at least 0, or None for no limit: got {self.max_staleness}")
        if self.chunk_length is not None and self.chunk_length < 1:
            raise UserError(f"chunk_length must be at least 1, or None for whole trajectories: got {self.chunk_length}")
        if self.burn_in < 0 or (self.burn_in and self.burn_in > (self.chunk_length or 0)):
            raise UserError(
                f"burn_in must lie between 0 and chunk_length: got {self.burn_in} and {self.chunk_length}; a whole trajectory "
                f"has nothing before it to burn in"
            )

    @property
    def num_gradient_steps(self) -> int:
        """Gradient steps of one update."""
        return self.num_epochs * self.num_minibatches
