"""Model that a search looks ahead with, and the result of a search.

A model may be learned (MuZero), exact (the rules of a game), or generative (a world model). In games of two players all values are
those of the player to move: `discount` is then -1 between moves.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Params

Latent = Any
"""State of a model: a tree of arrays, [N, ...] a leaf."""
ILLEGAL = -1e9
"""Logit of an action that is not legal: finite, as a softmax over nothing but illegal actions must not be NaN."""


class Root(NamedTuple):
    """State from which a search starts, for N rows.

    Attributes:
        logits: [N, A] float32, of the prior policy; `ILLEGAL` at actions that are not legal.
        value: [N] float32, estimated value of the state.
        latent: state of the model.
    """

    logits: Array
    value: Array
    latent: Latent


class ModelStep(NamedTuple):
    """Result of an action in the model, for N rows.

    Attributes:
        reward: [N] float32, for the player who acted.
        discount: [N] float32: 0 at the end of an episode, -1 where the other player moves next.
        logits: [N, A] float32, of the prior policy after the action; `ILLEGAL` at actions that are not legal.
        value: [N] float32, estimated value after the action, for the player who moves next.
        latent: state of the model after the action.
    """

    reward: Array
    discount: Array
    logits: Array
    value: Array
    latent: Latent


StepFn = Callable[[Params, Latent, Array, Array], ModelStep]
"""Maps (params, latent, action [N] int32, one typed key) to the step."""


class SearchResult(NamedTuple):
    """Result of a search, for N rows.

    Attributes:
        action: [N] int32, chosen.
        policy: [N, A] float32, the improved policy: a target for the prior one.
        value: [N] float32, of the root by the search.
        visits: [N, A] int32, simulations that started with each action.
    """

    action: Array
    policy: Array
    value: Array
    visits: Array


def legal_actions(logits: Array) -> Array:
    """Returns [..., A] bool, the legal actions of logits."""
    return logits > 0.5 * jnp.float32(ILLEGAL)


def step_rows(step: StepFn, params: Params, latent: Latent, action: Array, keys: Array) -> ModelStep:
    """Steps N rows of the model with [N] keys, each row by itself."""

    def one(row: Latent, taken: Array, key: Array) -> ModelStep:
        after = step(params, jax.tree.map(lambda leaf: leaf[None], row), taken[None], key)
        return jax.tree.map(lambda leaf: leaf[0], after)

    return jax.vmap(one)(latent, action, keys)
