"""Which network: plain data that a command line, a configuration file and a checkpoint can all hold."""

import dataclasses
from typing import Literal

from envpool_bridge.errors import UserError

Torso = Literal["mlp", "nature_cnn", "impala_resnet"]
Activation = Literal["tanh", "relu", "silu"]
CoreName = Literal["none", "lstm", "gru"]


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Shape of an actor-critic network.

    Attributes:
        torso: "mlp" for vectors, "nature_cnn" (Mnih et al. 2015) or "impala_resnet" (Espeholt et al. 2018) for images.
        hidden_sizes: dense layers: of the MLP, or after the convolutions.
        activation: of the dense layers.
        shared_torso: one torso for policy and value; None shares it for images only.
        squash: squash continuous actions into their bounds (TanhNormal) instead of clipping in the environment.
        initial_log_std: of continuous actions, in nats of the standard deviation in action units.
        core: what remembers between torso and heads: "none", "lstm" or "gru".
        core_size: outputs of the core.
    """

    torso: Torso = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    shared_torso: bool | None = None
    squash: bool = False
    initial_log_std: float = 0.0
    core: CoreName = "none"
    core_size: int = 128

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise UserError(f"hidden_sizes must be positive and at least one: got {self.hidden_sizes}")
        if self.core_size < 1:
            raise UserError(f"core_size must be positive: got {self.core_size}")

    @property
    def shares_torso(self) -> bool:
        """Whether policy and value share one torso."""
        return self.torso != "mlp" if self.shared_torso is None else self.shared_torso
