"""Conversion between models of this package and the functions that mctx calls."""

from typing import Any

import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.model import Latent, Root, SearchResult, StepFn

# Their fields are hidden from type checkers.
_RootOutput: Any = mctx.RootFnOutput
_StepOutput: Any = mctx.RecurrentFnOutput


def root_fn_output(root: Root) -> Any:
    """Returns the root as mctx takes it."""
    return _RootOutput(prior_logits=root.logits, value=root.value, embedding=root.latent)


def recurrent_fn(step: StepFn) -> Any:
    """Returns the model's step as mctx calls it."""

    def call(params: Params, key: Array, action: Array, latent: Latent) -> tuple[Any, Latent]:
        after = step(params, latent, action, key)
        output = _StepOutput(reward=after.reward, discount=after.discount, prior_logits=after.logits, value=after.value)
        return output, after.latent

    return call


def search_result(output: Any) -> SearchResult:
    """Returns the action, the weights, and the root's value and visits of mctx's result."""
    summary = output.search_tree.summary()
    return SearchResult(
        output.action.astype(jnp.int32),
        output.action_weights,
        summary.value,
        summary.visit_counts.astype(jnp.int32),
    )
