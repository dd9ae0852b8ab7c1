"""Guard on the device that skips non-finite updates, so that parameters are never NaN."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Agent, Array, LearnerState, Metrics, Trajectory, UpdateFn
from jaxsrl.replay.on_device import GRADIENT_STEPS
from jaxsrl.replay.state import experience, join_extra, learned_extra

SKIPPED = "learner/nonfinite_update"
"""Metric of every update: 1 if it was skipped because something in it was not finite, else 0.

With replay on the host and offline, the share of its gradient steps that were skipped, each alone.
"""

_ALL = 1.0 - 1e-6  # a share above it is 1: an accelerator may round n / n


class SkipCounts(NamedTuple):
    """Skipped and finite updates of a sequence: ints, or int32 scalars on a device.

    An update is skipped if all gradient steps of a policy were. One of which some were skipped and some were not is finite.
    An update in which a policy took no gradient step (replay) counts as neither.

    Attributes:
        skipped: updates that were skipped.
        finite: updates that were not.
        first: skipped updates before the first finite one.
        newest: skipped updates since the newest finite one.
        longest: largest number of consecutive skipped updates.
    """

    skipped: Any = 0
    finite: Any = 0
    first: Any = 0
    newest: Any = 0
    longest: Any = 0

    def after(self, metrics: Metrics | dict[str, float]) -> "SkipCounts":
        """Returns the counts with one more update, by its metrics: one `SKIPPED`, or one of each policy."""
        skipped = 1 * (sum(value > _ALL for name, value in metrics.items() if name.endswith(SKIPPED)) > 0)
        has_learned = math.prod(value > 0 for name, value in metrics.items() if name.endswith(GRADIENT_STEPS))
        finite = (1 - skipped) * has_learned
        newest = (self.newest + skipped) * (1 - finite)
        return SkipCounts(
            self.skipped + skipped,
            self.finite + finite,
            self.first + skipped * (self.finite == 0),
            newest,
            self.longest + (newest > self.longest),
        )


def all_finite(tree: Any) -> Array:
    """Returns whether every floating-point number in the tree is finite, bool scalar."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
    return jnp.all(jnp.stack(finite)) if finite else jnp.ones((), bool)


def learned_finite(state: LearnerState, metrics: Metrics) -> Array:
    """Returns whether parameters, optimizer, extras and losses are finite, bool scalar; metrics of any shape."""
    losses = {name: value for name, value in metrics.items() if name.startswith("loss")}
    return all_finite((_learned(state), losses))


def keep_if_finite(
    before: LearnerState, after: LearnerState, metrics: Metrics, was_finite: Array | bool = True
) -> tuple[LearnerState, Metrics]:
    """Returns `after`, or `before` with the count of `after` if parameters, optimizer, extras or a loss are not finite.

    Experience that `after` inserted for replay stays: it is data, and its own priorities are never NaN. If everything is finite,
    the result equals `after` bit for bit. Parameters, optimizer state and extras exist twice until the choice is made.

    Args:
        before: state before the update.
        after: state after it.
        metrics: float32 scalars; those whose name starts with "loss" count.
        was_finite: whether all gradient steps between the two were finite, bool scalar.
    """
    ok = learned_finite(after, metrics) & was_finite

    def choose(new: Array, old: Array) -> Array:
        return new if new is old else jnp.where(ok, new, old)  # a choice, even between equals, costs a copy

    kept = jax.tree.map(choose, _learned(after), _learned(before))
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
