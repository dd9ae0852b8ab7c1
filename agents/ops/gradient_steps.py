"""Gradient steps: the optimizer step with an early stop, and updates offered in parts for the plan `central`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from agents.api import Array, GradientSteps, LearnerState, Metrics, Params, Progress, Summary, Trajectory, UpdateFn


def init_progress(state: LearnerState) -> Progress:
    """Returns the progress before the first gradient step of an update."""
    return Progress(state.params, state.opt_state, state.num_updates, jnp.zeros((), jnp.int32))


def take_step(
    optimizer: optax.GradientTransformation, progress: Progress, grads: Params, stop: Array | None = None
) -> Progress:
    """Returns the progress after one optimizer step.

    Args:
        optimizer: It receives `num_updates`, see `agents.ops.schedules.scale_by_schedule`.
        progress: Before the step.
        grads: Gradient at `progress.params`.
        stop: Bool scalar: this step and all later ones of the update are skipped and counted. None: no step is skipped.
    """
    scheduled = optax.with_extra_args_support(optimizer)
    updates, opt_state = scheduled.update(grads, progress.opt_state, progress.params, num_updates=progress.num_updates)
    params = optax.apply_updates(progress.params, updates)
    if stop is None:
        return Progress(params, opt_state, progress.num_updates, progress.num_skipped)
    skip = (progress.num_skipped > 0) | stop
    params, opt_state = jax.tree.map(
        lambda old, new: jnp.where(skip, old, new), (progress.params, progress.opt_state), (params, opt_state)
    )
    return Progress(params, opt_state, progress.num_updates, progress.num_skipped + skip.astype(jnp.int32))


def apply_gradient(
    optimizer: optax.GradientTransformation, rate: optax.Schedule, state: LearnerState, grads: Params, metrics: Metrics
) -> tuple[LearnerState, Metrics]:
    """Returns the state after an update of one optimizer step, and its metrics; `rate` is the learning rate."""
    metrics = metrics | {
        "gradient/norm": optax.tree.norm(grads),
        "learning_rate": jnp.asarray(rate(state.num_updates), jnp.float32),
    }
    progress = take_step(optimizer, init_progress(state), grads)
    return LearnerState(progress.params, progress.opt_state, state.num_updates + 1), metrics


def single_gradient_step(
    loss: Callable[[Params, Trajectory], tuple[Array, Metrics]],
    optimizer: optax.GradientTransformation,
    rate: optax.Schedule,
) -> GradientSteps:
    """Returns the parts of an update that is one optimizer step on the loss of a whole trajectory.

    Args:
        loss: Function of the parameters and a trajectory; its metrics are float32 scalars.
        optimizer: Takes the step.
        rate: Learning rate, a function of `num_updates`; a metric.
    """

    def prepare(params: Params, extra: object, batch: Trajectory, key: Array) -> tuple[Trajectory, Summary]:
        del params, extra, key
        return batch, {}

    def gradient(params: Params, batch: Trajectory, step: Array) -> tuple[Params, Metrics]:
        del step
        grads, metrics = jax.grad(loss, has_aux=True)(params, batch)
        return grads, metrics | {"gradient/norm": optax.tree.norm(grads)}

    def apply(progress: Progress, grads: Params, metrics: Metrics) -> Progress:
        del metrics
        return take_step(optimizer, progress, grads)

    def finish(
        state: LearnerState, progress: Progress, summary: Summary, step_metrics: Metrics
    ) -> tuple[LearnerState, Metrics]:
        metrics = summary | {name: jnp.mean(values) for name, values in step_metrics.items()}
        metrics["learning_rate"] = jnp.asarray(rate(state.num_updates), jnp.float32)
        return LearnerState(progress.params, progress.opt_state, state.num_updates + 1), metrics

    return GradientSteps(1, prepare, gradient, apply, finish)


def make_update(steps: GradientSteps) -> UpdateFn:
    """Returns the update that these parts compose: for a variant of an agent that replaces one of them."""

    def update(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        prepared, summary = steps.prepare(state.params, state.extra, batch, key)

        def step(progress: Progress, index: Array) -> tuple[Progress, Metrics]:
            grads, metrics = steps.gradient(progress.params, prepared, index)
            return steps.apply(progress, grads, metrics), metrics

        indices = jnp.arange(steps.num_steps, dtype=jnp.int32)
        progress, step_metrics = jax.lax.scan(step, init_progress(state), indices)
        return steps.finish(state, progress, summary, step_metrics)

    return update
