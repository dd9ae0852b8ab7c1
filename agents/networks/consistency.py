"""Self-supervised consistency of a learned model: predicted latent states resemble those of the observations that follow.

Sources: Ye et al. 2021 (arXiv:2111.00210, EfficientZero), section 4.1; Chen and He 2021 (arXiv:2011.10566, SimSiam). The papers
normalize batches, here layers are normalized.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.muzero import MuZeroNetwork, latent_of


class ConsistencyNetwork(NamedTuple):
    """Projector and predictor. D is the size of a latent state.

    Attributes:
        init: Returns parameters; the key is consumed.
        loss: Maps (params, predicted [..., D], observed [..., D]) to the negative cosine similarity [...] in [-1, 1] of the
            predictor's output for the first to the projection of the second, into which no gradient flows.
    """

    init: Callable[[Array], Params]
    loss: Callable[[Params, Array, Array], Array]


class _Layers(nn.Module):
    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.sizes[:-1]:
            x = nn.relu(nn.LayerNorm()(nn.Dense(size)(x)))
        return nn.Dense(self.sizes[-1])(x)


def make_consistency_network(latent_size: int, projection_size: int) -> ConsistencyNetwork:
    """Returns a projector of three layers and a predictor of two, half as wide between them.

    Args:
        latent_size: D.
        projection_size: Outputs of both.
    """
    projector = _Layers((projection_size,) * 3)
    predictor = _Layers((max(1, projection_size // 2), projection_size))

    def init(key: Array) -> Params:
        first, second = jax.random.split(key)
        return {
            "projector": projector.init(first, jnp.zeros((1, latent_size))),
            "predictor": predictor.init(second, jnp.zeros((1, projection_size))),
        }

    def loss(params: Params, predicted: Array, observed: Array) -> Array:
        projected = projector.apply(params["projector"], predicted)
        guess = predictor.apply(params["predictor"], projected)
        target = projector.apply(params["projector"], observed)
        return negative_cosine(guess, jax.lax.stop_gradient(target))  # pyright: ignore[reportArgumentType]

    return ConsistencyNetwork(init, loss)


def unrolled_consistency(
    consistency: ConsistencyNetwork,
    net: MuZeroNetwork,
    params: Params,
    observation: Observation,
    predicted: Array,
    seen: Array,
) -> Array:
    """Returns [N], the mean over K steps of the loss between predicted states and those of the observations.

    Args:
        consistency: Projector and predictor.
        net: Model.
        params: Parameters of the model, those of the projector and predictor by the name "consistency".
        observation: [L+1, N, ...] each leaf, L >= K.
        predicted: [K, N, D], latent states after 1 to K steps from the first observation.
        seen: [K, N], 0 where the observation is of another episode.
    """
    following = jax.tree.map(lambda leaf: leaf[1 : len(predicted) + 1], observation)
    observed = latent_of(net.represent(params, following))
    return jnp.mean(seen * consistency.loss(params["consistency"], predicted, observed), axis=0)


def negative_cosine(first: Array, second: Array) -> Array:
    """Returns [...], minus the cosine of the angle between vectors [..., P]; 0 for a vector of zeros."""

    def unit(vector: Array) -> Array:
        # The root of a sum of 0 has no finite gradient.
        return vector / jnp.sqrt(jnp.sum(vector**2, axis=-1, keepdims=True) + 1e-12)

    return -jnp.sum(unit(first) * unit(second), axis=-1)
