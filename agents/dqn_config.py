"""Hyper-parameters of the DQN family. `docs/algorithms/dqn.md` says what each changes and where its default is from."""

import dataclasses
from typing import Any, Literal

from agents.api import ReplayConfig
from agents.ops import schedules
from agents.ops.epsilon_greedy import Exploration
from agents.ops.value_distributions import ValueDistribution, categorical_value, expected_value, quantile_value
from envpool_bridge.errors import UserError

ValueKind = Literal["expected", "c51", "quantile"]


@dataclasses.dataclass(frozen=True)
class DQNConfig:
    """DQN (Mnih et al. 2015) and what has been added to it since; all of that is off by default.

    Attributes:
        replay: sizes, rates and priorities of the replay buffer.
        exploration: epsilon over the run.
        total_updates: trajectories of the whole run, for all schedules.
        learning_rate: Adam's.
        learning_rate_schedule: "constant", or "linear" to 0 after `total_updates`.
        adam_epsilon: added to the root of the second moment.
        max_grad_norm: gradients are scaled down to this global norm; None: off.
        discount: g, of one env step.
        num_steps: n, rewards of a return before it bootstraps.
        target_period: gradient steps from one copy of the target network to the next.
        double: the online network chooses the action that the target network values (van Hasselt et al. 2016).
        dueling: a stream for the value and one for advantages (Wang et al. 2016).
        noisy: noisy layers in the streams (Fortunato et al. 2018); exploration may then be 0.
        noisy_sigma: sigma_0 of those layers.
        value: what is learned of returns: "expected" values, or distributions: "c51" (Bellemare et al. 2017), "quantile"
            (Dabney et al. 2018).
        num_atoms: of "c51", or quantiles of "quantile".
        value_low: least return of "c51".
        value_high: largest return of "c51".
        huber_delta: absolute errors beyond it count linearly ("expected", None: never, and "quantile").
        value_rescaling: epsilon of R2D2's rescaling of values ("expected" only); None: off.
        reward_clip: rewards are clipped to [-reward_clip, reward_clip] before anything else; None: off.
        importance_exponent: beta of prioritised replay at the start; it grows to 1 over the run.
        initial_priorities: of new windows: the "highest" there was, or from what acting "recorded" (Ape-X).
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    exploration: Exploration = dataclasses.field(default_factory=Exploration)
    total_updates: int = 0
    learning_rate: float = 2.5e-4
    learning_rate_schedule: schedules.Kind = "constant"
    adam_epsilon: float = 1.5e-4
    max_grad_norm: float | None = 10.0
    discount: float = 0.99
    num_steps: int = 1
    target_period: int = 1_000
    double: bool = False
    dueling: bool = False
    noisy: bool = False
    noisy_sigma: float = 0.5
    value: ValueKind = "expected"
    num_atoms: int = 51
    value_low: float = -10.0
    value_high: float = 10.0
    huber_delta: float | None = 1.0
    value_rescaling: float | None = None
    reward_clip: float | None = None
    importance_exponent: float = 0.4
    initial_priorities: Literal["highest", "recorded"] = "highest"

    def __post_init__(self) -> None:
        for name in ("num_steps", "target_period"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")
        for name in ("learning_rate", "adam_epsilon", "noisy_sigma"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        for name in ("max_grad_norm", "huber_delta", "value_rescaling", "reward_clip"):
            if getattr(self, name) is not None and not getattr(self, name) > 0.0:
                raise UserError(f"{name} must be positive, or None for none: got {getattr(self, name)}")
        for name in ("discount", "importance_exponent"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} must lie in [0, 1]: got {getattr(self, name)}")
        self._check_values()

    def _check_values(self) -> None:
        if self.value not in ("expected", "c51", "quantile"):
            raise UserError(f"value must be 'expected', 'c51' or 'quantile': got {self.value!r}")
        if self.value != "expected" and self.num_atoms < 2:
            raise UserError(f"num_atoms must be at least 2 of a distribution: got {self.num_atoms}")
        if self.value == "c51" and not self.value_low < self.value_high:
            raise UserError(f"value_low must lie below value_high: got {self.value_low} and {self.value_high}")
        if self.value == "quantile" and self.huber_delta is None:
            raise UserError("value='quantile' needs huber_delta, its kappa: got None; 1 is the paper's")
        if self.value != "expected" and self.value_rescaling is not None:
            raise UserError(f"value_rescaling is of value='expected' only: got value={self.value!r}; leave it None")
        if self.value == "c51" and self.initial_priorities == "recorded":
            raise UserError(
                "recorded priorities are absolute errors of values, those of value='c51' are divergences: expected "
                "initial_priorities='highest' with it, got 'recorded'"
            )

    @property
    def is_prioritised(self) -> bool:
        """Whether windows are drawn by priority."""
        return self.replay.priority_exponent > 0.0

    def value_distribution(self) -> ValueDistribution:
        """What outputs mean, and how they are fitted."""
        if self.value == "c51":
            return categorical_value(self.num_atoms, self.value_low, self.value_high)
        if self.value == "quantile":
            return quantile_value(self.num_atoms, self.huber_delta or 1.0)
        return expected_value(self.huber_delta, self.value_rescaling)


def rainbow_config(**changes: Any) -> DQNConfig:
    """Rainbow: everything at once, with the settings for Atari (Hessel et al. 2018, arXiv:1710.02298, table 1).

    Args:
        **changes: fields that are otherwise. `replay` sizes are the paper's; one gradient step every 4 env steps.
    """
    replay = ReplayConfig(
        capacity=1_000_000, batch_size=32, min_size=20_000, samples_per_insert=8.0, priority_exponent=0.5
    )
    settings: dict[str, Any] = {
        "replay": replay,
        "exploration": Exploration(initial=0.0, final=0.0),
        "learning_rate": 6.25e-5,
        "num_steps": 3,
        "target_period": 2_000,  # 8,000 env steps
        "double": True,
        "dueling": True,
        "noisy": True,
        "value": "c51",
        "reward_clip": 1.0,
    }
    return DQNConfig(**(settings | changes))
