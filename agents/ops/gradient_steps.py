"""Updates written as gradient steps: their composition into one function, and the optimizer step most of them share."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from agents.api import ApplyFn, Array, GradientSteps, LearnerState, Metrics, Params, Progress, Trajectory, UpdateFn


def make_update(steps: GradientSteps) -> UpdateFn:
    """The update whose gradients are computed and applied in one place, one after another."""

    def update(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        prepared, summary = steps.prepare(state.params, state.extra, batch, key)

        def step(progress: Progress, index: Array) -> tuple[Progress, Metrics]:
            grads, metrics = steps.gradient(progress.params, prepared, index)
            return steps.apply(progress, grads, metrics), metrics

        indices = jnp.arange(steps.num_steps, dtype=jnp.int32)
        progress, step_metrics = jax.lax.scan(step, first_progress(state), indices)
        return steps.finish(state, progress, summary, step_metrics)

    return update


def first_progress(state: LearnerState) -> Progress:
    """Returns the progress before the first gradient step of an update."""
    return Progress(state.params, state.opt_state, state.num_updates, jnp.zeros((), jnp.int32))


def make_apply(optimizer: optax.GradientTransformation, exceeds: Callable[[Metrics], Array] | None = None) -> ApplyFn:
    """Returns a function that takes one step of `optimizer`.

    Args:
        optimizer: of the agent. It receives `num_updates`, see `agents.ops.schedules.scale_by_schedule`.
        exceeds: from a gradient's metrics, a bool scalar: that step and all later ones of the update are skipped (the
            metrics were measured before the step). None: every step is taken.
    """
    scheduled = optax.with_extra_args_support(optimizer)

    def apply(progress: Progress, grads: Params, metrics: Metrics) -> Progress:
        updates, opt_state = scheduled.update(
            grads, progress.opt_state, progress.params, num_updates=progress.num_updates
        )
        params = optax.apply_updates(progress.params, updates)
        if exceeds is None:
            return dataclasses.replace(progress, params=params, opt_state=opt_state)
        skip = (progress.num_skipped > 0) | exceeds(metrics)
        params, opt_state = jax.tree.map(
            lambda old, new: jnp.where(skip, old, new), (progress.params, progress.opt_state), (params, opt_state)
        )
        return Progress(params, opt_state, progress.num_updates, progress.num_skipped + skip.astype(jnp.int32))

    return apply
