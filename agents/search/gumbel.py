"""Gumbel MuZero: sequential halving among the actions with the largest sums of a Gumbel variable and the prior's logit.

The improved policy is not worse than the prior one for any number of simulations of at least 2, in expectation and
with exact values.

Source: Danihelka et al. 2022, "Policy improvement by planning with Gumbel", algorithm 1 and section 3.4. The search is mctx's.
"""

import dataclasses
from functools import partial

import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.mctx_engine import recurrent_fn, root_fn_output, search_result
from agents.search.model import Root, SearchResult, StepFn, legal_actions, search_rows
from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class GumbelConfig:
    """Settings of the search.

    Attributes:
        num_simulations: calls of the model for each search, at least 1.
        max_considered: actions that sequential halving starts with, at most.
        max_depth: longest path of actions; 0 for no limit.
        value_scale: weight of values against logits (c_scale): 0.1 for rewards of any size, 1 for games with outcomes -1 and 1.
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
                raise UserError(f"search.{name} must be at least 1: got {getattr(self, name)}")
        if self.max_depth < 0:
            raise UserError(f"search.max_depth must be at least 0, which sets no limit: got {self.max_depth}")


def gumbel_search(
    step: StepFn, params: Params, root: Root, keys: Array, config: GumbelConfig, *, gumbel_scale: float | Array = 1.0
) -> SearchResult:
    """Searches N rows.

    Args:
        step: of the model.
        params: of the model.
        root: of the rows.
        keys: [N] typed keys.
        config: settings.
        gumbel_scale: scale of the Gumbel variables; 0 is greedy.

    Returns:
        The considered action of most visits and largest sum; the policy is the softmax of logits and completed values.
    """
    transform = partial(
        mctx.qtransform_completed_by_mix_value, value_scale=config.value_scale, maxvisit_init=config.visit_offset
    )

    def search_row(row: Root, key: Array) -> SearchResult:
        output = mctx.gumbel_muzero_policy(
            params,
            key,
            root_fn_output(row),
            recurrent_fn(step),
            config.num_simulations,
            invalid_actions=jnp.logical_not(legal_actions(row.logits)),
            max_depth=config.max_depth or None,
            qtransform=transform,
            max_num_considered_actions=config.max_considered,
            gumbel_scale=gumbel_scale,
        )
        return search_result(output)

    return search_rows(search_row, root, keys)
