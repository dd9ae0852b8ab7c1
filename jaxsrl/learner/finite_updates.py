"""Updates that came to nothing finite are left out, on the device: neither parameters nor what actors get is ever NaN."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array, LearnerState, Metrics
from jaxsrl.replay.state import Replayed

SKIPPED = "learner/nonfinite_update"
"""Metric of every update: 1 if it was left out because something in it was not finite, else 0."""


def all_finite(tree: Any) -> Array:
    """Whether no floating-point number in the tree is infinite or NaN, bool scalar."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
    return jnp.all(jnp.stack(finite)) if finite else jnp.ones((), bool)


def finite_or_before(before: LearnerState, after: LearnerState, metrics: Metrics) -> tuple[LearnerState, Metrics]:
    """`after`, or `before` with the count of `after` where parameters, optimizer, what else is carried, or a loss is not finite.

    Experience that `after` has taken in for replay stays: it is data, and its own priorities are never NaN. Where all is finite
    the result is `after` to the bit. Parameters, optimizer state and what else is carried exist twice until the choice is made.

    Args:
        before: as the update began.
        after: as it ended.
        metrics: float32 scalars; those whose name begins with "loss" count.
    """
    losses = {name: value for name, value in metrics.items() if name.startswith("loss")}
    ok = all_finite((_learnt(after), losses))
    kept = jax.tree.map(lambda new, old: jnp.where(ok, new, old), _learnt(after), _learnt(before))
    params, opt_state, extra = kept
    if isinstance(after.extra, Replayed):
        extra = Replayed(extra, after.extra.buffer)
    state = dataclasses.replace(after, params=params, opt_state=opt_state, extra=extra)
    return state, metrics | {SKIPPED: 1.0 - ok.astype(jnp.float32)}


def with_finite_updates(
    update: Callable[[LearnerState, Any, Array], tuple[LearnerState, Metrics]],
) -> Callable[[LearnerState, Any, Array], tuple[LearnerState, Metrics]]:
    """An agent's update that leaves out what is not finite; see `finite_or_before`."""

    def guarded(state: LearnerState, batch: Any, key: Array) -> tuple[LearnerState, Metrics]:
        return finite_or_before(state, *update(state, batch, key))

    return guarded


def _learnt(state: LearnerState) -> tuple[Any, Any, Any]:
    extra = state.extra.extra if isinstance(state.extra, Replayed) else state.extra
    return state.params, state.opt_state, extra
