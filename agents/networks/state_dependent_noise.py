"""Generalized state-dependent exploration (gSDE): smooth noise of continuous actions.

Source: Raffin et al. 2021 (arXiv:2005.05719), section 3. The noise of a row is E^T h, with the policy's features h [F] and a matrix
E [F, D] of Gaussians of deviations exp(log_std). E stays the same for a number of steps, so equal observations have equal noise.
Given h, the action is a Gaussian of variance (h^2) exp(2 log_std).

A row's state is the seed of its matrix, which is drawn again at every step, and the number of steps that it remains.
"""

import jax
import jax.numpy as jnp

from agents.api import AgentState, Array
from agents.networks.config import NetworkConfig

_SMALLEST_VARIANCE = 1e-6  # as in the authors' code: features may all be 0


def initial_log_std(config: NetworkConfig, num_actions: int) -> Array:
    """Returns the initial log deviations [F, D] of the matrix; F is the last of `hidden_sizes`."""
    return jnp.full((config.hidden_sizes[-1], num_actions), config.initial_log_std)


def feature_log_std(features: Array, log_std: Array) -> Array:
    """Returns the log standard deviation [..., D] of actions at features [..., F]; `log_std` [F, D] is that of the matrix."""
    variance = jnp.square(features) @ jnp.exp(2.0 * log_std)
    return 0.5 * jnp.log(variance + _SMALLEST_VARIANCE)


def feature_noise(features: Array, log_std: Array, seeds: Array) -> Array:
    """Returns the noise [B, D] at features [B, F] in units of its standard deviation, from the matrices of seeds [B]."""

    def draw(own: Array, seed: Array) -> Array:
        return own @ (jnp.exp(log_std) * jax.random.normal(jax.random.key(seed), log_std.shape))

    return jax.vmap(draw)(features, seeds) * jnp.exp(-feature_log_std(features, log_std))


def initial_noise_state(num_rows: int) -> AgentState:
    """Returns {"seed": [B] uint32, "steps_left": [B] int32}, before any matrix was drawn."""
    return {"seed": jnp.zeros((num_rows,), jnp.uint32), "steps_left": jnp.zeros((num_rows,), jnp.int32)}


def next_noise_state(period: int, state: AgentState, is_first: Array, keys: Array) -> AgentState:
    """Returns the state of this step, with new seeds where an episode starts or the period is over.

    Args:
        period: Steps of one matrix.
        state: State of the previous step, [B] each.
        is_first: [B] bool.
        keys: Typed keys [B], which are consumed.
    """
    is_new = is_first | (state["steps_left"] <= 0)
    seed = jnp.where(is_new, jax.vmap(jax.random.bits)(keys), state["seed"])
    return {"seed": seed, "steps_left": jnp.where(is_new, period, state["steps_left"]) - 1}
