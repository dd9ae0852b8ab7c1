"""Optimizers of all algorithms: a clip of the gradient's global norm, then scaled steps."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from agents.ops import validate
from agents.ops.schedules import Schedules, scale_by_schedule
from agents.settings import Nested, Unread

OptimizerName = Literal["adam", "adamw", "laprop", "rmsprop", "sgd"]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Nested):
    """Settings of an optimizer; learning rates and their schedule are fields of the algorithm.

    Attributes:
        name: "adam", "adamw" (Adam with decoupled weight decay), "laprop" (Ziyin et al. 2020, arXiv:2002.04839: the momentum of
            scaled gradients), "rmsprop" or "sgd".
        epsilon: Added to the root of the second moment for "adam" and "laprop"; under the root for "rmsprop", as in TensorFlow.
        weight_decay: Weight of the parameters in the step for "adamw", in the clipped gradient for the others; 0: off.
        max_grad_norm: Gradients are scaled down to this global norm; None: off.
        adaptive_clip: The gradient of each array is scaled down to this share of the array's norm; None: off.
        decay: Decay of the running mean of squared gradients of "rmsprop" and "laprop". It starts at 0: with 0.99 the first step of
            "rmsprop" is up to 10 times the learning rate per weight.
        momentum: Decay of the running sum of steps of "rmsprop" and "sgd", of their running mean of "laprop"; 0: off.
        accumulate: Gradient steps whose mean gradient makes one step of the optimizer.
    """

    name: OptimizerName = "adam"
    epsilon: float = 1e-5
    weight_decay: float = 0.0
    max_grad_norm: float | None = None
    adaptive_clip: float | None = None
    decay: float = 0.99
    momentum: float = 0.0
    accumulate: int = 1

    def __post_init__(self) -> None:
        validate.choices(self, "optimizer.")
        validate.positive(self, "epsilon", "max_grad_norm", "adaptive_clip")
        validate.not_negative(self, "weight_decay")
        validate.at_least_one(self, "accumulate")
        validate.fraction(self, "decay", "momentum", below_one=True)

    def unread(self) -> Unread:
        """Returns the rules for fields without effect."""
        reason = f"name is {self.name!r}"
        yield self.name == "sgd", reason, "epsilon"
        yield self.name not in ("laprop", "rmsprop"), reason, "decay"
        yield self.name in ("adam", "adamw"), reason, "momentum"
        yield self.name == "adamw" and self.weight_decay == 0.0, "weight_decay is 0", "name"


def make_optimizer(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer.

    Args:
        config: Settings.
        rate: Learning rate, a function of the argument `num_updates` of the optimizer's `update`.
    """
    steps = [] if config.max_grad_norm is None else [optax.clip_by_global_norm(config.max_grad_norm)]
    if config.adaptive_clip is not None:
        steps += [clip_by_parameters(config.adaptive_clip)]
    decay = [optax.add_decayed_weights(config.weight_decay)] if config.weight_decay else []
    if config.name == "adamw":
        steps += [optax.scale_by_adam(eps=config.epsilon), *decay]
    elif config.name == "adam":
        steps += [*decay, optax.scale_by_adam(eps=config.epsilon)]
    elif config.name == "laprop":
        scale = optax.scale_by_rms(config.decay, config.epsilon, eps_in_sqrt=False, bias_correction=True)
        steps += [*decay, scale, optax.ema(config.momentum)]
    else:
        scale = [optax.scale_by_rms(config.decay, config.epsilon)]
        momentum = [optax.trace(config.momentum)] if config.momentum else []
        steps += [*decay, *(scale if config.name == "rmsprop" else []), *momentum]
    optimizer = optax.with_extra_args_support(optax.chain(*steps, scale_by_schedule(rate)))
    if config.accumulate == 1:
        return optimizer
    several: Any = optax.MultiSteps(optimizer, config.accumulate)
    return optax.GradientTransformationExtraArgs(several.init, several.update)


def make_optimizers(config: OptimizerConfig, rates: Schedules) -> dict[str, optax.GradientTransformationExtraArgs]:
    """Returns an optimizer of its own for each learning rate."""
    return {name: make_optimizer(config, rate) for name, rate in rates.items()}


def clip_by_parameters(share: float, smallest_norm: float = 1e-3) -> optax.GradientTransformation:
    """Returns a transformation that scales each gradient array down to `share` of the norm of its parameters.

    Source: Brock et al. 2021 (arXiv:2102.06171), section 4.1, of whole arrays as in DreamerV3 instead of single units.

    Args:
        share: Largest norm of a gradient array, as a multiple of its parameters' norm.
        smallest_norm: Norm of parameters that are smaller, or all zero.
    """

    def clip(gradient: jax.Array, parameters: jax.Array) -> jax.Array:
        largest = share * jnp.maximum(jnp.linalg.norm(parameters.ravel()), smallest_norm)
        return gradient / jnp.maximum(1.0, jnp.linalg.norm(gradient.ravel()) / largest)

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        return jax.tree.map(clip, updates, params), state

    return optax.GradientTransformation(optax.init_empty_state, update)  # pyright: ignore[reportArgumentType]
