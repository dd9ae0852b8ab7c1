"""Stochastic MuZero's search: after each action, chance selects an outcome.

Decision nodes select actions by PUCT. Chance nodes select the outcome c with the largest p(c) / (1 + N(c)), so that visits
approach the model's probabilities without sampling.

Source: Antonoglou et al. 2022, "Planning in stochastic environments with a learned model", section 3 and appendix. The search
is mctx's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.mctx_engine import root_fn_output, search_result
from agents.search.model import Latent, ModelStep, Root, SearchResult, legal_actions, search_rows
from agents.search.puct import PUCTConfig

# Their fields are hidden from type checkers.
_DecisionOutput: Any = mctx.DecisionRecurrentFnOutput
_ChanceOutput: Any = mctx.ChanceRecurrentFnOutput


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
        params: of the model.
        root: of the rows.
        keys: [N] typed keys.
        config: settings of the search; `max_depth` counts both kinds of nodes.
        temperature: of the choice among visit counts; 0 takes the most visited action.
        noise: factor of the noise at the root; 0 for none.

    Returns:
        The action drawn from visits ** (1 / temperature); the policy is the visits' share.
    """

    def search_row(row: Root, key: Array) -> SearchResult:
        output = mctx.stochastic_muzero_policy(
            params,
            key,
            root_fn_output(row),
            _decision_fn(decide),
            _chance_fn(chance),
            config.num_simulations,
            invalid_actions=jnp.logical_not(legal_actions(row.logits)),
            max_depth=config.max_depth or None,
            dirichlet_fraction=noise * config.dirichlet_fraction,
            dirichlet_alpha=config.dirichlet_alpha,
            pb_c_init=config.c1,
            pb_c_base=config.c2,
            temperature=temperature,
        )
        return search_result(output)

    return search_rows(search_row, root, keys)


def _decision_fn(decide: DecideFn) -> Any:
    def call(params: Params, key: Array, action: Array, latent: Latent) -> tuple[Any, Latent]:
        after = decide(params, latent, action, key)
        return _DecisionOutput(chance_logits=after.logits, afterstate_value=after.value), after.latent

    return call


def _chance_fn(chance: ChanceFn) -> Any:
    def call(params: Params, key: Array, outcome: Array, latent: Latent) -> tuple[Any, Latent]:
        after = chance(params, latent, outcome, key)
        output = _ChanceOutput(
            action_logits=after.logits, value=after.value, reward=after.reward, discount=after.discount
        )
        return output, after.latent

    return call
