"""Gumbel MuZero: sequential halving among the actions with the largest sums of a Gumbel variable and the prior's logit.

The improved policy is not worse than the prior one for any number of simulations of at least 2, in expectation and
with exact values.

Source: Danihelka et al. 2022, "Policy improvement by planning with Gumbel", algorithm 1 and section 3.4. The
rules that select actions are mctx's.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.model import ILLEGAL, Root, SearchResult, StepFn, legal_actions
from agents.search.tree import Selection, View, grow_trees
from agents.settings import Nested
from envpool_bridge.errors import UserError

# Their arguments are hidden from type checkers, or narrower than what they accept.
_ExtraData: Any = mctx.GumbelMuZeroExtraData
_select_at_root: Any = mctx.gumbel_muzero_root_action_selection


@dataclasses.dataclass(frozen=True)
class GumbelConfig(Nested):
    """Settings of the search.

    Attributes:
        num_simulations: calls of the model for each search, at least 1.
        max_considered: actions that sequential halving starts with, at most.
        max_depth: longest path of actions; 0 for no limit.
        value_scale: weight of values against logits (c_scale). Values are stretched to [0, 1] at each node: with 1, even small
            differences of values decide against the logits; with 0.1, the logits count too.
        visit_offset: visits that are added before scaling (c_visit).
    """

    num_simulations: int = 16
    max_considered: int = 16
    max_depth: int = 0
    value_scale: float = 0.1
    visit_offset: float = 50.0

    def __post_init__(self) -> None:
        for name in ("num_simulations", "max_considered"):
            if getattr(self, name) < 1:
                raise UserError(f"gumbel.{name} must be at least 1: got {getattr(self, name)}")
        for name in ("max_depth", "value_scale", "visit_offset"):
            if getattr(self, name) < 0:
                raise UserError(f"gumbel.{name} must be at least 0: got {getattr(self, name)}")


def gumbel_search(
    step: StepFn, params: Params, root: Root, keys: Array, config: GumbelConfig, *, gumbel_scale: float | Array = 1.0
) -> SearchResult:
    """Searches N rows.

    Args:
        step: Step of the model.
        params: Parameters of the model.
        root: Root of the rows.
        keys: [N] typed keys.
        config: settings.
        gumbel_scale: scale of the Gumbel variables; 0 is greedy.

    Returns:
        The considered action of most visits and largest sum; the policy is the softmax of logits and completed values.
    """
    transform: Any = partial(
        mctx.qtransform_completed_by_mix_value, value_scale=config.value_scale, maxvisit_init=config.visit_offset
    )

    search_keys, noise_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    legal, size = legal_actions(root.logits), root.logits.shape[1:]
    noise = gumbel_scale * jax.vmap(partial(jax.random.gumbel, shape=size))(noise_keys)
    logits = jnp.where(legal, root.logits - root.logits.max(-1, keepdims=True), ILLEGAL)

    def select_at_root(key: Array, view: View, state: int, depth: Array) -> Array:
        del depth
        return _select_at_root(
            key,
            view,
            state,
            num_simulations=config.num_simulations,
            max_num_considered_actions=config.max_considered,
            qtransform=transform,
        )

    inside: Any = partial(mctx.gumbel_muzero_interior_action_selection, qtransform=transform)
    view = grow_trees(
        step,
        params,
        root._replace(logits=logits),
        search_keys,
        Selection(inside, select_at_root, _ExtraData(root_gumbel=noise)),
        num_simulations=config.num_simulations,
        max_depth=config.max_depth,
    )
    visits = view.children_visits[:, 0]
    improved = logits + jax.vmap(transform, (0, None))(view, 0)
    is_considered = legal & (visits == visits.max(-1, keepdims=True))
    action = jnp.where(is_considered, noise + improved, -jnp.inf).argmax(-1).astype(jnp.int32)
    policy = jax.nn.softmax(jnp.where(legal, improved, ILLEGAL))
    return SearchResult(action, policy, view.node_values[:, 0], visits)
