"""MuZero's search: actions by value and prior probability (PUCT), with Dirichlet noise at the root.

Source: Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model", appendix B. The
rule that selects actions is mctx's.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.model import ILLEGAL, Root, SearchResult, StepFn, legal_actions
from agents.search.tree import Selection, grow_trees
from agents.settings import Nested
from envpool_bridge.errors import UserError

select_action: Any = mctx.muzero_action_selection
"""Maps (key, view, state, depth) of one row to an action, with the weights `pb_c_init` and `pb_c_base` of the prior."""
_TINY = jnp.finfo(jnp.float32).tiny


@dataclasses.dataclass(frozen=True)
class PUCTConfig(Nested):
    """Settings of the search.

    Attributes:
        num_simulations: calls of the model for each search, at least 1.
        max_depth: longest path of actions; 0 for no limit.
        dirichlet_alpha: concentration of the noise at the root.
        dirichlet_fraction: share of the noise in the root's prior, in [0, 1].
        c1: weight of the prior.
        c2: visits after which the weight of the prior grows.
    """

    num_simulations: int = 50
    max_depth: int = 0
    dirichlet_alpha: float = 0.3
    dirichlet_fraction: float = 0.25
    c1: float = 1.25
    c2: float = 19652.0

    def __post_init__(self) -> None:
        if self.num_simulations < 1:
            raise UserError(f"puct.num_simulations must be at least 1: got {self.num_simulations}")
        for name in ("max_depth", "c1"):
            if getattr(self, name) < 0:
                raise UserError(f"puct.{name} must be at least 0: got {getattr(self, name)}")
        for name in ("dirichlet_alpha", "c2"):
            if getattr(self, name) <= 0:
                raise UserError(f"puct.{name} must be positive: got {getattr(self, name)}")
        if not 0.0 <= self.dirichlet_fraction <= 1.0:
            raise UserError(f"puct.dirichlet_fraction must lie in [0, 1]: got {self.dirichlet_fraction}")


def puct_search(
    step: StepFn,
    params: Params,
    root: Root,
    keys: Array,
    config: PUCTConfig,
    *,
    temperature: float | Array = 1.0,
    noise: float | Array = 1.0,
) -> SearchResult:
    """Searches N rows.

    Args:
        step: Step of the model.
        params: Parameters of the model.
        root: Root of the rows.
        keys: [N] typed keys.
        config: settings.
        temperature: Temperature of the choice among visit counts; 0 takes the most visited action.
        noise: factor of the noise at the root; 0 for none.

    Returns:
        The action drawn from visits ** (1 / temperature); the policy is the visits' share.
    """
    draw_keys, noise_keys, search_keys = jax.vmap(partial(jax.random.split, num=3), out_axes=1)(keys)
    view = grow_trees(
        step,
        params,
        root._replace(logits=noisy_logits(root.logits, noise_keys, config, noise)),
        search_keys,
        Selection(partial(select_action, pb_c_init=config.c1, pb_c_base=config.c2)),
        num_simulations=config.num_simulations,
        max_depth=config.max_depth,
    )
    return result_of_visits(view.children_visits[:, 0], view.node_values[:, 0], draw_keys, temperature)


def noisy_logits(logits: Array, keys: Array, config: PUCTConfig, noise: float | Array) -> Array:
    """Returns the logits [N, A] of a prior policy that Dirichlet noise over its legal actions is mixed into.

    `keys` [N] are consumed.
    """
    legal, share = legal_actions(logits), noise * config.dirichlet_fraction
    alpha = jnp.full(logits.shape[-1], config.dirichlet_alpha)
    # Gamma variables over their sum are a Dirichlet variable. Their logarithms do not underflow.
    drawn = jax.nn.softmax(jnp.where(legal, jax.vmap(jax.random.loggamma, (0, None))(keys, alpha), ILLEGAL))
    return jnp.where(legal, _log((1 - share) * jax.nn.softmax(logits) + share * drawn), ILLEGAL)


def result_of_visits(visits: Array, value: Array, keys: Array, temperature: float | Array) -> SearchResult:
    """Returns the result with actions drawn from visits [N, A] ** (1 / temperature). `keys` [N] are consumed."""
    policy = visits / visits.sum(-1, keepdims=True)
    logits = (_log(policy) - _log(policy.max(-1, keepdims=True))) / jnp.maximum(_TINY, temperature)
    action = jax.vmap(jax.random.categorical)(keys, jnp.where(visits > 0, logits, -jnp.inf))
    return SearchResult(action.astype(jnp.int32), policy, value, visits)


def _log(probabilities: Array) -> Array:
    return jnp.log(jnp.maximum(probabilities, _TINY))
