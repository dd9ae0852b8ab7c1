"""Stochastic MuZero's search: after each action, chance selects an outcome.

Decision nodes select actions by PUCT. Chance nodes select the outcome c with the largest p(c) / (1 + N(c)), so that visits
approach the model's probabilities without sampling; the rule is that of `mctx.stochastic_muzero_policy`.

Source: Antonoglou et al. 2022, "Planning in stochastic environments with a learned model", section 3 and appendix.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Params
from agents.search.model import ILLEGAL, Latent, ModelStep, Root, SearchResult
from agents.search.puct import PUCTConfig, noisy_logits, result_of_visits, select_action
from agents.search.tree import Selection, View, grow_trees

_OF_CHOICES = (
    "children_index",
    "children_prior_logits",
    "children_visits",
    "children_rewards",
    "children_discounts",
    "children_values",
    "root_invalid_actions",
)
"""Fields of a view whose last axis is that of the choices."""


class Afterstate(NamedTuple):
    """Result of an action before chance has acted, for N rows.

    Attributes:
        logits: [N, C] float32, of the outcomes of chance.
        value: [N] float32, estimated value, for the player who acted.
        latent: state of the model after the action.
    """

    logits: Array
    value: Array
    latent: Latent


DecideFn = Callable[[Params, Latent, Array, Array], Afterstate]
"""Maps (params, latent, action [N] int32, one typed key) to the state after the action."""
ChanceFn = Callable[[Params, Latent, Array, Array], ModelStep]
"""Maps (params, latent of an afterstate, outcome [N] int32, one typed key) to the step: reward, discount, next state."""


def stochastic_search(
    decide: DecideFn,
    chance: ChanceFn,
    params: Params,
    root: Root,
    keys: Array,
    config: PUCTConfig,
    *,
    temperature: float | Array = 1.0,
    noise: float | Array = 1.0,
) -> SearchResult:
    """Searches N rows.

    A simulation adds one node, of a decision or of chance: a search needs about twice the simulations of `puct_search`.

    Args:
        decide: the model's half step from a state and an action.
        chance: the model's half step from an afterstate and an outcome of chance.
        params: Parameters of the model.
        root: Root of the rows.
        keys: [N] typed keys.
        config: settings of the search; `max_depth` counts both kinds of nodes.
        temperature: Temperature of the choice among visit counts; 0 takes the most visited action.
        noise: factor of the noise at the root; 0 for none.

    Returns:
        The action drawn from visits ** (1 / temperature); the policy is the visits' share.
    """
    num_actions = root.logits.shape[-1]
    draw_keys, noise_keys, search_keys = jax.vmap(partial(jax.random.split, num=3), out_axes=1)(keys)
    logits = noisy_logits(root.logits, noise_keys, config, noise)
    after = jax.eval_shape(decide, params, root.latent, jnp.zeros(keys.shape[0], jnp.int32), keys[0])
    no_afterstate = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), after.latent)
    first = _Node(root.latent, no_afterstate, jnp.ones(keys.shape[0], bool))
    view = grow_trees(
        partial(_step, decide, chance, num_actions),
        params,
        Root(_padded(logits, after=after.logits.shape[-1]), root.value, first),
        search_keys,
        Selection(partial(_select, config, num_actions)),
        num_simulations=config.num_simulations,
        max_depth=config.max_depth,
    )
    return result_of_visits(view.children_visits[:, 0, :num_actions], view.node_values[:, 0], draw_keys, temperature)


class _Node(NamedTuple):
    """Latents of a node, of which the other kind of node has no use, and whether an action follows, not chance."""

    state: Latent
    afterstate: Latent
    is_decision: Array


def _padded(logits: Array, *, before: int = 0, after: int = 0) -> Array:
    return jnp.pad(logits, ((0, 0), (before, after)), constant_values=ILLEGAL)


def _step(
    decide: DecideFn, chance: ChanceFn, num_actions: int, params: Params, node: _Node, choice: Array, key: Array
) -> ModelStep:
    """Returns half a step of the model. The choices are the A actions, then the C outcomes of chance."""
    half = decide(params, node.state, jnp.minimum(choice, num_actions - 1), key)
    step = chance(params, node.afterstate, jnp.maximum(choice - num_actions, 0), key)
    num_outcomes, yes, zero = half.logits.shape[-1], jnp.ones_like(node.is_decision), jnp.zeros_like(half.value)
    decided = ModelStep(
        zero, zero + 1.0, _padded(half.logits, before=num_actions), half.value, _Node(node.state, half.latent, ~yes)
    )
    drawn = step._replace(
        logits=_padded(step.logits, after=num_outcomes), latent=_Node(step.latent, node.afterstate, yes)
    )

    def choose(one: Array, other: Array) -> Array:
        return jnp.where(node.is_decision.reshape(-1, *[1] * (one.ndim - 1)), one, other)

    return jax.tree.map(choose, decided, drawn)


def _select(config: PUCTConfig, num_actions: int, key: Array, view: View, state: int, depth: Array) -> Array:
    """Returns the choice of one row: of actions at even depths, of outcomes at odd ones."""

    def from_actions() -> Array:
        of_actions = {name: getattr(view, name)[..., :num_actions] for name in _OF_CHOICES}
        return select_action(key, view.replace(**of_actions), state, depth, pb_c_init=config.c1, pb_c_base=config.c2)

    def from_outcomes() -> Array:
        visits, logits = (leaf[state, num_actions:] for leaf in (view.children_visits, view.children_prior_logits))
        return (num_actions + jnp.argmax(jax.nn.softmax(logits) / (visits + 1))).astype(jnp.int32)

    return jax.lax.cond(depth % 2 == 0, from_actions, from_outcomes)
