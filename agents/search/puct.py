"""MuZero's search: actions by value and prior probability (PUCT), with Dirichlet noise at the root.

Source: Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model", appendix B. The
search is mctx's.
"""

import dataclasses

import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.mctx_engine import recurrent_fn, root_fn_output, search_result
from agents.search.model import Root, SearchResult, StepFn, legal_actions, search_rows
from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class PUCTConfig:
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
            raise UserError(f"search.num_simulations must be at least 1: got {self.num_simulations}")
        if self.max_depth < 0:
            raise UserError(f"search.max_depth must be at least 0, which sets no limit: got {self.max_depth}")
        if not 0.0 <= self.dirichlet_fraction <= 1.0:
            raise UserError(f"search.dirichlet_fraction must lie in [0, 1]: got {self.dirichlet_fraction}")


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
        step: of the model.
        params: of the model.
        root: of the rows.
        keys: [N] typed keys.
        config: settings.
        temperature: of the choice among visit counts; 0 takes the most visited action.
        noise: factor of the noise at the root; 0 for none.

    Returns:
        The action drawn from visits ** (1 / temperature); the policy is the visits' share.
    """

    def search_row(row: Root, key: Array) -> SearchResult:
        output = mctx.muzero_policy(
            params,
            key,
            root_fn_output(row),
            recurrent_fn(step),
            config.num_simulations,
            invalid_actions=jnp.logical_not(legal_actions(row.logits)),
            max_depth=config.max_depth or None,
            dirichlet_fraction=noise * config.dirichlet_fraction,
            dirichlet_alpha=config.dirichlet_alpha,
            pb_c_init=config.c1,
            pb_c_base=config.c2,
            temperature=temperature,
        )
        result = search_result(output)
        visits = result.visits.astype(jnp.float32)
        return result._replace(policy=visits / visits.sum(-1, keepdims=True))

    return search_rows(search_row, root, keys)
