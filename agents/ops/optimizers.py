"""Optimizers of all algorithms: a clip of the gradient's global norm, then scaled steps."""

import dataclasses
from typing import Any, Literal, get_args

import optax

from agents.ops import validate
from agents.ops.schedules import scale_by_schedule
from envpool_bridge.errors import UserError

OptimizerName = Literal["adam", "adamw", "rmsprop", "sgd"]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Settings of an optimizer; learning rates and their schedule are fields of the algorithm.

    Attributes:
        name: "adam", "adamw" (Adam with decoupled weight decay), "rmsprop" or "sgd".
        epsilon: Added to the root of the second moment for "adam"; under the root for "rmsprop", as in TensorFlow.
        weight_decay: Weight of the parameters in the step for "adamw", in the clipped gradient for the others; 0: off.
        max_grad_norm: Gradients are scaled down to this global norm; None: off.
        decay: Decay of the running mean of squared gradients of "rmsprop".
        initial_scale: Initial value of that mean. 1 as in TensorFlow: steps are those of plain gradient descent until it has
            decayed, after about 1,000 updates. 0: the first step is up to 10 times the learning rate per weight.
        momentum: Decay of the running sum of steps of "rmsprop" and "sgd"; 0: off.
        accumulate: Gradient steps whose mean gradient makes one step of the optimizer.
    """

    name: OptimizerName = "adam"
    epsilon: float = 1e-5
    weight_decay: float = 0.0
    max_grad_norm: float | None = None
    decay: float = 0.99
    initial_scale: float = 1.0
    momentum: float = 0.0
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.name not in get_args(OptimizerName):
            raise UserError(f"the optimizer must be one of {', '.join(get_args(OptimizerName))}: got {self.name!r}")
        validate.positive(self, "epsilon", "max_grad_norm")
        validate.not_negative(self, "weight_decay", "initial_scale")
        validate.at_least_one(self, "accumulate")
        for name in ("decay", "momentum"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"{name} must lie in [0, 1): got {getattr(self, name)}")
        if self.momentum and self.name not in ("rmsprop", "sgd"):
            raise UserError(f"momentum is for 'rmsprop' and 'sgd': got {self.momentum} with {self.name!r}; set it to 0")


def make_optimizer(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer.

    Args:
        config: Settings.
        rate: Learning rate, a function of the argument `num_updates` of the optimizer's `update`.
    """
    steps = [] if config.max_grad_norm is None else [optax.clip_by_global_norm(config.max_grad_norm)]
    decay = [optax.add_decayed_weights(config.weight_decay)] if config.weight_decay else []
    if config.name == "adamw":
        steps += [optax.scale_by_adam(eps=config.epsilon), *decay]
    elif config.name == "adam":
        steps += [*decay, optax.scale_by_adam(eps=config.epsilon)]
    else:
        scale = [optax.scale_by_rms(config.decay, config.epsilon, config.initial_scale)]
        momentum = [optax.trace(config.momentum)] if config.momentum else []
        steps += [*decay, *(scale if config.name == "rmsprop" else []), *momentum]
    optimizer = optax.with_extra_args_support(optax.chain(*steps, scale_by_schedule(rate)))
    if config.accumulate == 1:
        return optimizer
    several: Any = optax.MultiSteps(optimizer, config.accumulate)
    return optax.GradientTransformationExtraArgs(several.init, several.update)
