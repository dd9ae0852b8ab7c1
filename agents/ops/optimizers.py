"""Optimizers of policy-gradient algorithms: a clip of the gradient's global norm, then scaled steps."""

from typing import Literal

import optax

from agents.ops.schedules import scale_by_schedule

OptimizerName = Literal["rmsprop", "adam"]


def clipped_adam(rate: optax.Schedule, max_grad_norm: float, epsilon: float) -> optax.GradientTransformationExtraArgs:
    """Returns Adam after a clip of the gradient's global norm.

    Args:
        rate: Learning rate, a function of the argument `num_updates` of the optimizer's `update`.
        max_grad_norm: Largest global norm.
        epsilon: Added to the square root of the second moment.
    """
    clip = optax.clip_by_global_norm(max_grad_norm)
    return optax.with_extra_args_support(optax.chain(clip, optax.scale_by_adam(eps=epsilon), scale_by_schedule(rate)))


def clipped_rmsprop(
    rate: optax.Schedule, max_grad_norm: float, epsilon: float, decay: float, initial_scale: float
) -> optax.GradientTransformationExtraArgs:
    """Returns RMSProp without momentum after a clip of the gradient's global norm.

    Args:
        rate: Learning rate, a function of the argument `num_updates` of the optimizer's `update`.
        max_grad_norm: Largest global norm.
        epsilon: Added to the mean square under the root, as in TensorFlow.
        decay: Decay of the running mean of squared gradients.
        initial_scale: Initial value of that mean. 1 as in TensorFlow: steps are those of plain gradient descent until it has
            decayed, after about 1,000 updates. 0: the first step is up to 10 times the learning rate per weight.
    """
    clip = optax.clip_by_global_norm(max_grad_norm)
    return optax.with_extra_args_support(
        optax.chain(clip, optax.scale_by_rms(decay, epsilon, initial_scale), scale_by_schedule(rate))
    )
