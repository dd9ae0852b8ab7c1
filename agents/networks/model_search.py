"""Search in a learned model from observations, and again in recorded windows.

Sources: Schrittwieser et al. 2020 (arXiv:1911.08265), sections 3 and H (Reanalyze); the searches name their own.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params, Trajectory
from agents.networks.muzero import ModelState, MuZeroNetwork, expected_reward
from agents.networks.search_actions import Choices, SearchActions
from agents.ops.two_hot import two_hot_mean
from agents.search.gumbel import GumbelConfig, gumbel_search
from agents.search.model import ILLEGAL, Latent, ModelStep, Root, SearchResult
from agents.search.puct import PUCTConfig, puct_search

SearchFn = Callable[[Params, Observation, Array, Array | None], tuple[SearchResult, Choices]]
"""Maps (params, observation [N, ...] each leaf, keys [N] consumed, temperature of "puct") to the result and the choices at its
root. Temperature None searches without noise and takes the best action."""


def make_search(
    net: MuZeroNetwork,
    actions: SearchActions,
    discount: float,
    kind: Literal["gumbel", "puct"],
    gumbel: GumbelConfig,
    puct: PUCTConfig,
) -> SearchFn:
    """Returns the search in a learned model.

    Args:
        net: The model.
        actions: Actions among which nodes choose.
        discount: Discount per step of the model.
        kind: Kind of the search.
        gumbel: Settings of the search "gumbel".
        puct: Settings of the search "puct".
    """

    def make_root(params: Params, state: ModelState, keys: Array) -> Root:
        prediction = net.predict(params, state)
        choices, logits = actions.propose(prediction.policy, keys)
        return Root(logits, two_hot_mean(prediction.value), {"state": state, "choices": choices})

    def model_step(params: Params, latent: Latent, action: Array, key: Array) -> ModelStep:
        taken = actions.features(actions.take(latent["choices"], action))
        state, logits = net.advance(params, latent["state"], taken)
        node = make_root(params, state, jax.random.split(key, action.shape[0]))
        reward = expected_reward(latent["state"], logits)
        return ModelStep(reward, jnp.full(action.shape, discount, jnp.float32), node.logits, node.value, node.latent)

    def search(
        params: Params, observation: Observation, keys: Array, temperature: Array | None
    ) -> tuple[SearchResult, Choices]:
        proposal_keys, search_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        root = make_root(params, net.represent(params, observation), proposal_keys)
        legal = actions.legal(observation)
        if legal is not None:
            root = root._replace(logits=jnp.where(legal != 0, root.logits, ILLEGAL))
        explores = float(temperature is not None)
        if kind == "gumbel":
            result = gumbel_search(model_step, params, root, search_keys, gumbel, gumbel_scale=explores)
        else:
            chosen = 0.0 if temperature is None else temperature
            result = puct_search(model_step, params, root, search_keys, puct, temperature=chosen, noise=explores)
        return result, root.latent["choices"]

    return search


def recorded_search(result: SearchResult, choices: Choices) -> dict[str, Array]:
    """Returns the extras of steps [N] that MuZero learns from: policy and value of the search, and the choices at its root."""
    return {"search_policy": result.policy, "root_value": result.value, **(choices or {})}


def search_again(
    search: SearchFn, params: Params, window: Trajectory, num_states: int, chosen: Array, key: Array
) -> dict[str, Array]:
    """Returns the extras of windows with those of new searches in the first states of some windows. `key` is consumed.

    Args:
        search: Search from `make_search`.
        params: Parameters of the model.
        window: N windows of at least `num_states` steps.
        num_states: States of a window that are searched again.
        chosen: [M] int32, the windows that are searched again.
        key: Consumed.
    """
    num_windows = len(chosen)
    observation = jax.tree.map(lambda leaf: leaf[:num_states, chosen].reshape(-1, *leaf.shape[2:]), window.observation)
    renewed = recorded_search(
        *search(params, observation, jax.random.split(key, num_states * num_windows), jnp.ones(()))
    )
    extras = dict(window.extras)
    for name, values in renewed.items():
        shaped = values.reshape(num_states, num_windows, *values.shape[1:])
        extras[name] = extras[name].at[:num_states, chosen].set(shaped)
    return extras
