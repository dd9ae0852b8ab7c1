"""Gradient steps: the optimizer step with an early stop, and updates offered in parts for the plan `central`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from agents.api import Array, GradientSteps, LearnerState, Metrics, Params, Progress, Summary, Trajectory, UpdateFn
from agents.ops.gradient_descent import descend
from agents.ops.schedules import Schedules, current_values

ScheduledLoss = Callable[[Params, Trajectory, Any, Array], tuple[Array, Metrics]]
"""Function of the parameters, a trajectory, `LearnerState.extra` and `num_updates`; its metrics are float32 scalars."""


def init_progress(state: LearnerState) -> Progress:
    """Returns the progress before the first gradient step of an update."""
    return Progress(state.params, state.opt_state, state.num_updates, jnp.zeros((), jnp.int32))


def take_step(
    optimizer: optax.GradientTransformation,
    progress: Progress,
    grads: Params,
    stop: Array | None = None,
    rate_scale: Array | None = None,
) -> Progress:
    """Returns the progress after one optimizer step.

    Args:
        optimizer: Optimizer that receives `num_updates`, see `agents.ops.schedules.scale_by_schedule`.
        progress: Progress before the step.
        grads: Gradient at `progress.params`.
        stop: Bool scalar: this step and all later ones of the update are skipped and counted. None: no step is skipped.
        rate_scale: Factor of the learning rate, a float32 scalar. None: 1.
    """
    scheduled = optax.with_extra_args_support(optimizer)
    params, opt_state = descend(scheduled, grads, progress.opt_state, progress.params, progress.num_updates, rate_scale)
    if stop is None:
        return Progress(params, opt_state, progress.num_updates, progress.num_skipped)
    skip = (progress.num_skipped > 0) | stop
    params, opt_state = jax.tree.map(
        lambda old, new: jnp.where(skip, old, new), (progress.params, progress.opt_state), (params, opt_state)
    )
    return Progress(params, opt_state, progress.num_updates, progress.num_skipped + skip.astype(jnp.int32))


def single_step_update(loss: ScheduledLoss, optimizer: optax.GradientTransformation, schedules: Schedules) -> UpdateFn:
    """Returns an update that is one optimizer step on the loss of a whole trajectory.

    Args:
        loss: Differentiated by the parameters.
        optimizer: Takes the step.
        schedules: Functions of `num_updates` whose values are metrics.
    """

    def update(state: LearnerState, trajectory: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        del key
        grads, metrics = jax.grad(loss, has_aux=True)(state.params, trajectory, state.extra, state.num_updates)
        metrics |= {"gradient/norm": optax.tree.norm(grads)} | current_values(schedules, state.num_updates)
        progress = take_step(optimizer, init_progress(state), grads)
        return LearnerState(progress.params, progress.opt_state, state.num_updates + 1, state.extra), metrics

    return update


def single_gradient_step(
    loss: ScheduledLoss, optimizer: optax.GradientTransformation, schedules: Schedules
) -> GradientSteps:
    """Returns the parts of `single_step_update`, for the plan `central`. The arguments are the same."""

    def prepare(
        params: Params, extra: Any, batch: Trajectory, key: Array, num_updates: Array
    ) -> tuple[tuple[Trajectory, Any, Array], Summary]:
        del params, key
        return (batch, extra, num_updates), {}

    def gradient(params: Params, prepared: tuple[Trajectory, Any, Array], step: Array) -> tuple[Params, Metrics]:
        del step
        grads, metrics = jax.grad(loss, has_aux=True)(params, *prepared)
        return grads, metrics | {"gradient/norm": optax.tree.norm(grads)}

    def apply(progress: Progress, grads: Params, metrics: Metrics) -> Progress:
        del metrics
        return take_step(optimizer, progress, grads)

    def finish(
        state: LearnerState, progress: Progress, summary: Summary, step_metrics: Metrics
    ) -> tuple[LearnerState, Metrics]:
        metrics = summary | {name: jnp.mean(values) for name, values in step_metrics.items()}
        metrics |= current_values(schedules, state.num_updates)
        return LearnerState(progress.params, progress.opt_state, state.num_updates + 1, state.extra), metrics

    return GradientSteps(1, prepare, gradient, apply, finish)


def make_update(steps: GradientSteps) -> UpdateFn:
    """Returns the update that these parts compose: for a variant of an agent that replaces one of them."""

    def update(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        prepared, summary = steps.prepare(state.params, state.extra, batch, key, state.num_updates)

        def step(progress: Progress, index: Array) -> tuple[Progress, Metrics]:
            grads, metrics = steps.gradient(progress.params, prepared, index)
            return steps.apply(progress, grads, metrics), metrics

        indices = jnp.arange(steps.num_steps, dtype=jnp.int32)
        progress, step_metrics = jax.lax.scan(step, init_progress(state), indices)
        return steps.finish(state, progress, summary, step_metrics)

    return update
