"""Guard on the device that skips non-finite updates, so that parameters are never NaN."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Agent, Array, LearnerState, Metrics, Trajectory, UpdateFn
from jaxsrl.replay.state import experience, join_extra, learned_extra

SKIPPED = "learner/nonfinite_update"
"""Metric of every update: 1 if it was skipped because something in it was not finite, else 0."""


def all_finite(tree: Any) -> Array:
    """Returns whether every floating-point number in the tree is finite, bool scalar."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
    return jnp.all(jnp.stack(finite)) if finite else jnp.ones((), bool)


def keep_if_finite(before: LearnerState, after: LearnerState, metrics: Metrics) -> tuple[LearnerState, Metrics]:
    """Returns `after`, or `before` with the count of `after` if parameters, optimizer, extras or a loss are not finite.

    Experience that `after` inserted for replay stays: it is data, and its own priorities are never NaN. If everything is finite,
    the result equals `after` bit for bit. Parameters, optimizer state and extras exist twice until the choice is made.

    Args:
        before: state before the update.
        after: state after it.
        metrics: float32 scalars; those whose name starts with "loss" count.
    """
    losses = {name: value for name, value in metrics.items() if name.startswith("loss")}
    ok = all_finite((_learned(after), losses))
    kept = jax.tree.map(lambda new, old: jnp.where(ok, new, old), _learned(after), _learned(before))
    params, opt_state, extra = kept
    extra = join_extra(after.extra, extra, experience(after.extra))
    state = dataclasses.replace(after, params=params, opt_state=opt_state, extra=extra)
    return state, metrics | {SKIPPED: 1.0 - ok.astype(jnp.float32)}


def with_finite_updates(agent: Agent) -> Agent:
    """Returns the agent with a guard around its update and those of its groups; see `keep_if_finite`."""
    groups = tuple(group._replace(update=_guard(group.update)) for group in agent.groups)
    return agent._replace(update=_guard(agent.update), groups=groups)


def _guard(update: UpdateFn) -> UpdateFn:
    def guarded(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        return keep_if_finite(state, *update(state, batch, key))

    return guarded


def _learned(state: LearnerState) -> tuple[Any, Any, Any]:
    return state.params, state.opt_state, learned_extra(state.extra)
