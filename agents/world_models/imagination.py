"""Sequences that a world model imagines while a policy acts in it.

Source: Hafner et al. 2025 (DreamerV3, arXiv:2301.04104), "Critic learning" and "Actor learning".
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agents.api import Array, Params
from agents.world_models.model import WorldModel
from agents.world_models.rssm import Latent, sample_stoch


def imagine(
    model: WorldModel, params: Params, policy: Callable[[Array], Array], start: Latent, length: int, key: Array
) -> tuple[Array, Array]:
    """Returns features [length + 1, N, D + S C] of the states that follow N starts, and the actions [length + 1, N, F] taken there.

    Args:
        model: The bound model.
        params: Parameters of the model.
        policy: Maps features [N, D + S C] to parameters [N, P] of the distribution of actions.
        start: [N, ...] first states.
        length: Steps after the first states.
        key: Key of the samples, consumed.
    """
    latent_key, action_key = jax.random.split(key)
    num_starts, sizes = start.deter.shape[0], model.sizes
    latent_noise = jax.random.gumbel(latent_key, (length, num_starts, sizes.stoch, sizes.classes))
    action_noise = model.actions.noise(action_key, (length + 1, num_starts))

    def choose(latent: Latent, noise: Array) -> Array:
        return model.actions.sample(policy(latent.features), noise)

    def step(
        before: tuple[Latent, Array], noise: tuple[Array, Array]
    ) -> tuple[tuple[Latent, Array], tuple[Array, Array]]:
        deter = model.advance(params, *before)
        after = Latent(deter, sample_stoch(model.prior(params, deter), noise[0]))
        action = choose(after, noise[1])
        return (after, action), (after.features, action)

    first = start, choose(start, action_noise[0])
    _, (features, actions) = jax.lax.scan(step, first, (latent_noise, action_noise[1:]), unroll=model.unroll)
    return jnp.concatenate([start.features[None], features]), jnp.concatenate([first[1][None], actions])
