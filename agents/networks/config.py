"""Configuration of a network: plain data for command lines, configuration files and checkpoints."""

import dataclasses
from typing import Any, Literal, NamedTuple

from agents.ops import validate
from agents.settings import reject_other, validate_numbers
from envpool_bridge.errors import UserError

IMAGE_TORSOS = ("nature_cnn", "impala_resnet", "cnn")
TORSO_NAMES = ("mlp", *IMAGE_TORSOS, "entities")
Convolution = tuple[int, int, int]
"""Output channels, kernel size and stride."""
Activation = Literal["tanh", "relu", "silu", "gelu", "elu"]
CoreName = Literal["none", "lstm", "gru", "gtrxl"]
DTypeName = Literal["float32", "bfloat16"]
LogStd = Literal["parameter", "state"]


POLICY_FIELDS = ("shared_torso", "critic_hidden_sizes", "squash", "initial_log_std", "log_std", "sde_period")
"""Fields that only some policies and critics read."""
POLICY_LOG_STD_RANGE = (-5.0, 2.0)
"""Range of log standard deviations that depend on the state: a vanishing one makes log-probabilities and their ratios explode."""


class LayerOptions(NamedTuple):
    """Options of all layers of a torso; `NetworkConfig` describes them."""

    activation: Activation
    layer_norm: bool = False
    dtype: DTypeName = "float32"


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Shape of an actor-critic network.

    Attributes:
        torso: Encoder: "mlp" for vectors; "nature_cnn" (Mnih et al. 2015), "impala_resnet" (Espeholt et al. 2018) or "cnn" (any
            convolutions) for images; "entities" (attention, Baker et al. 2020) for sets of entities. "module:name" is your own: a
            function or class that takes this configuration and makes a flax module (docs/how_to/custom_agent.md).
        hidden_sizes: Sizes of the dense layers of the MLP, or after the convolutions. The first is also the size of an entity.
        convolutions: Output channels, kernel size and stride of each layer of "cnn", without padding; the default is for images of
            about 10 x 10 (Young & Tian 2019).
        activation: Activation of the dense layers.
        shared_torso: Use one torso for policy and value; None shares it for images only.
        critic_hidden_sizes: `hidden_sizes` of critics, and of the value of an actor-critic with separate torsos; None: the same.
        layer_norm: Normalize the outputs of each dense layer before its activation (Ba et al. 2016, arXiv:1607.06450).
        dtype: Type in which torsos and cores compute. Parameters, recurrent states and outputs are float32 in any case.
        remat: Compute the torso's intermediate results again in the gradient instead of keeping them: less memory, more time.
        squash: Squash continuous actions into their bounds (TanhNormal) instead of clipping in the environment.
        initial_log_std: Initial logarithm of the standard deviation of continuous actions. Its unit is half the interval of
            an element with two finite bounds, otherwise the environment's. With `squash`, it is of the Gaussian before squashing.
        log_std: The standard deviation of continuous actions of on-policy algorithms: a "parameter" that all states share, or
            an output for each "state", `initial_log_std` plus that of a linear layer, clipped to `POLICY_LOG_STD_RANGE`.
        sde_period: Steps for which the noise of gSDE (Raffin et al. 2021) stays the same function of the features; for PPO, A2C,
            SAC and other Gaussian policies. `initial_log_std` is then that of its matrix. None: independent noise at each step.
        core: Recurrent core between torso and heads: "none", "lstm", "gru" or "gtrxl" (Parisotto et al. 2019).
        core_size: Number of outputs of the core.
        core_layers: Number of layers of the core; None: 1 of "lstm" and "gru", 2 of "gtrxl".
        core_heads: Number of attention heads of "gtrxl"; divides `core_size`.
        core_memory: Number of earlier steps that each layer of "gtrxl" attends to.
        entity_heads: Number of attention heads of "entities"; divides the first of `hidden_sizes`. 0: no attention, but mean and
            maximum of the entities, at a fraction of the cost.
        circular: Names of observation leaves of evenly spaced rays, which pass through a circular convolution first.
    """

    torso: str = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)
    convolutions: tuple[Convolution, ...] = ((16, 3, 1),)
    activation: Activation = "tanh"
    shared_torso: bool | None = None
    critic_hidden_sizes: tuple[int, ...] | None = None
    layer_norm: bool = False
    dtype: DTypeName = "float32"
    remat: bool = False
    squash: bool = False
    initial_log_std: float = 0.0
    log_std: LogStd = "parameter"
    sde_period: int | None = None
    core: CoreName = "none"
    core_size: int = 128
    core_layers: int | None = None
    core_heads: int = 4
    core_memory: int = 32
    entity_heads: int = 4
    circular: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        object.__setattr__(self, "circular", tuple(self.circular))
        object.__setattr__(self, "convolutions", tuple(map(_as_tuple, self.convolutions)))
        if self.torso not in TORSO_NAMES and not is_own_torso(self.torso):
            raise UserError(
                f"torso must be one of {', '.join(TORSO_NAMES)}, or 'module:name' of your own: got {self.torso!r}"
            )
        if self.critic_hidden_sizes is not None:
            object.__setattr__(self, "critic_hidden_sizes", tuple(self.critic_hidden_sizes))
        validate_numbers(self, "network.")
        validate.positive(self, "core_size", "core_layers", "core_heads", "core_memory")
        validate.not_negative(self, "entity_heads")
        validate.choices(self)
        for name in ("hidden_sizes", "critic_hidden_sizes"):
            self._validate_sizes(name, getattr(self, name))
        self._validate_convolutions()
        self._validate_deviation()
        if self.core == "gtrxl":
            _validate_heads("core_heads", self.core_heads, "core_size", self.core_size)

    def _validate_convolutions(self) -> None:
        layers = self.convolutions
        numbers = [layer if isinstance(layer, tuple) and len(layer) == 3 else (0,) for layer in layers]
        if not layers or not all(isinstance(number, int) and number > 0 for layer in numbers for number in layer):
            raise UserError(
                "convolutions must be (output channels, kernel size, stride) of each layer, positive integers, at least one: got "
                f"{layers}"
            )
        if self.torso != "cnn" and not is_own_torso(self.torso) and layers != type(self).convolutions:
            raise UserError(f"convolutions are those of torso 'cnn': got torso {self.torso!r} and {layers}")

    def _validate_deviation(self) -> None:
        if self.log_std == "state" and not POLICY_LOG_STD_RANGE[0] <= self.initial_log_std <= POLICY_LOG_STD_RANGE[1]:
            raise UserError(
                f"initial_log_std must lie in {list(POLICY_LOG_STD_RANGE)} with log_std='state': got {self.initial_log_std}"
            )
        if self.sde_period is None:
            return
        if self.sde_period < 1:
            raise UserError(f"sde_period must be at least 1, or None: got {self.sde_period}")
        if self.core != "none" or self.log_std != "parameter":
            raise UserError(
                f"sde_period makes noise of the torso's features: expected core 'none' and log_std 'parameter', got {self.core!r} "
                f"and {self.log_std!r}; use them, or sde_period None"
            )

    def _validate_sizes(self, name: str, sizes: tuple[int, ...] | None) -> None:
        if sizes is None:
            return
        if not sizes or min(sizes) < 1:
            raise UserError(f"{name} must be positive and at least one: got {sizes}")
        if self.torso == "entities" and self.entity_heads:
            _validate_heads("entity_heads", self.entity_heads, f"{name}[0]", sizes[0])

    @property
    def num_core_layers(self) -> int:
        """Returns the number of layers of the core."""
        return (2 if self.core == "gtrxl" else 1) if self.core_layers is None else self.core_layers

    @property
    def layers(self) -> LayerOptions:
        """Returns the options of the torso's layers."""
        return LayerOptions(self.activation, self.layer_norm, self.dtype)

    @property
    def critic(self) -> "NetworkConfig":
        """Returns the configuration of a critic's own network."""
        sizes = self.critic_hidden_sizes
        return self if sizes is None else dataclasses.replace(self, hidden_sizes=sizes, critic_hidden_sizes=None)

    @property
    def shares_torso(self) -> bool:
        """Returns whether policy and value share one torso."""
        return self.torso in IMAGE_TORSOS if self.shared_torso is None else self.shared_torso


def _as_tuple(layer: Any) -> Any:
    return tuple(layer) if isinstance(layer, list) else layer


def is_own_torso(torso: str) -> bool:
    """Returns whether the name is "module:name", a torso of the user's own."""
    return ":" in torso


def _validate_heads(heads_name: str, num_heads: int, size_name: str, size: int) -> None:
    if size % num_heads:
        down = size - size % num_heads
        near = f"{down} or {down + num_heads}" if down else f"{num_heads}"
        raise UserError(
            f"{heads_name} must divide {size_name}: got {num_heads} and {size}; use a {size_name} of {near}"
        )


def validate_read(network: NetworkConfig, reader: str, *names: str) -> None:
    """Raises UserError where a field of policies and critics is not its default, and `reader` does not read it.

    Args:
        network: Configuration; `shared_torso` may be False everywhere.
        reader: Noun for the message.
        names: Fields that it reads.
    """
    for name in POLICY_FIELDS:
        if name not in names and not (name == "shared_torso" and not network.shared_torso):
            reject_other(
                f"network.{name}", getattr(network, name), getattr(NetworkConfig, name), f"{reader} does not read it"
            )


def validate_plain_network(name: str, network: NetworkConfig) -> None:
    """Raises UserError if the network of algorithm `name` is recurrent."""
    if network.core != "none":
        raise UserError(
            f"{name} learns from single transitions, without the state of a memory: expected network.core 'none', got "
            f"{network.core!r}; use it, with stacked frames if one observation does not say enough, or PPO"
        )
