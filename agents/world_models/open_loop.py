"""Open-loop predictions: observations that a world model imagines from a few real ones and the actions that were taken.

Source: Hafner et al. 2025 (DreamerV3, arXiv:2301.04104), the figure of multi-step predictions.
"""

from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array, Params, Trajectory
from agents.world_models.model import WorldModel, observe_step
from agents.world_models.rssm import Latent, sample_stoch
from agents.world_models.windows import load_latent


def predict_observations(
    model: WorldModel, params: Params, extra: Any, window: Trajectory, seen: Array, key: Array
) -> dict[str, tuple[Array, Array]]:
    """Returns real and predicted observations by name of the leaf; see `agents.api.PredictObservationsFn`.

    A state without a seen observation is sampled from the prior. At the start of an episode it follows from nothing.

    Args:
        model: The bound model.
        params: Parameters that act.
        extra: Has the other parameters of the model as `other_params`.
        window: [T(+1), B, ...] steps, whose agent state is of `agents.world_models.windows`.
        seen: [T+1, B] bool.
        key: Key of the samples, consumed.
    """
    params, stored = {**params, **extra.other_params}, window.agent_state
    action = jnp.concatenate([stored["action"][None], model.actions.encode(window.action)])
    noise = jax.random.gumbel(key, (*action.shape[:2], model.sizes.stoch, model.sizes.classes))
    tokens = model.encode(params, window.observation)

    def step(before: Latent, inputs: tuple[Array, ...]) -> tuple[Latent, Latent]:
        is_seen, arrived_by, is_first, token, noise = inputs
        observed, _ = observe_step(model, params, before, arrived_by, is_first, token, noise)
        imagined = sample_stoch(model.prior(params, observed.deter), noise)
        after = Latent(observed.deter, jnp.where(is_seen[:, None, None], observed.stoch, imagined))
        return after, after

    start = load_latent(model, stored)
    _, latents = jax.lax.scan(step, start, (seen, action, window.is_first, tokens, noise))
    return model.observations.compare(model.decode(params, latents), window.observation)
