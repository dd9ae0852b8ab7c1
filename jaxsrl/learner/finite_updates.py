"""Updates whose result is not finite are skipped, on the device: no parameters are ever NaN, and none that actors get."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Agent, Array, LearnerState, Metrics, Trajectory, UpdateFn
from jaxsrl.replay.state import ReplayExtra

SKIPPED = "learner/nonfinite_update"
"""Metric of every update: 1 if it was skipped because something in it was not finite, else 0."""


def all_finite(tree: Any) -> Array:
    """Returns whether no floating-point number in the tree is infinite or NaN, bool scalar."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
    return jnp.all(jnp.stack(finite)) if finite else jnp.ones((), bool)


def keep_if_finite(before: LearnerState, after: LearnerState, metrics: Metrics) -> tuple[LearnerState, Metrics]:
    """Returns `after`; or `before` with the count of `after` where parameters, optimizer, extra state or a loss are not finite.

    Experience that `after` has inserted for replay stays: it is data, and its own priorities are never NaN. Where all is finite
    the result equals `after` bit for bit. Parameters, optimizer state and extra state exist twice until the choice is made.

    Args:
        before: State before the update.
        after: State after it.
        metrics: float32 scalars; those whose name starts with "loss" count.
    """
    losses = {name: value for name, value in metrics.items() if name.startswith("loss")}
    ok = all_finite((_learned(after), losses))
    kept = jax.tree.map(lambda new, old: jnp.where(ok, new, old), _learned(after), _learned(before))
    params, opt_state, extra = kept
    if isinstance(after.extra, ReplayExtra):
        extra = ReplayExtra(extra, after.extra.buffer)
    state = dataclasses.replace(after, params=params, opt_state=opt_state, extra=extra)
    return state, metrics | {SKIPPED: 1.0 - ok.astype(jnp.float32)}


def with_finite_updates(agent: Agent) -> Agent:
    """Returns the agent, whose update and those of its groups skip what is not finite; see `keep_if_finite`."""
    groups = tuple(group._replace(update=_guard(group.update)) for group in agent.groups)
    return agent._replace(update=_guard(agent.update), groups=groups)


def _guard(update: UpdateFn) -> UpdateFn:
    def guarded(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        return keep_if_finite(state, *update(state, batch, key))

    return guarded


def _learned(state: LearnerState) -> tuple[Any, Any, Any]:
    extra = state.extra.extra if isinstance(state.extra, ReplayExtra) else state.extra
    return state.params, state.opt_state, extra
