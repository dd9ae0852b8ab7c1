"""The recurrent state-space model (RSSM): a state that a block GRU carries, and categorical variables that are sampled.

Source: Hafner et al. 2019 (arXiv:1811.04551); in the form of Hafner et al. 2025 (DreamerV3, arXiv:2301.04104), "World model
learning" and "Model architecture".
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import DTypeName
from agents.world_models.layers import BlockDense, Layers, NormSiLU, dense
from agents.world_models.sizes import Sizes

UNIMIX = 0.01
"""Share of the uniform distribution in all categorical distributions, so that no probability vanishes."""


class Latent(NamedTuple):
    """State of the model.

    Attributes:
        deter: [..., D] float32, the recurrent state.
        stoch: [..., S, C] float32, one-hot samples; zeros before the first step.
    """

    deter: Array
    stoch: Array

    @property
    def features(self) -> Array:
        """Returns [..., D + S C], what heads see."""
        flat = self.stoch.reshape((*self.stoch.shape[:-2], -1))
        return jnp.concatenate([self.deter, flat], axis=-1)


class RSSM(nn.Module):
    """The model's three functions: the next recurrent state, and distributions of samples without and with an observation.

    Attributes:
        sizes: Sizes of all layers.
        dtype: Type of the computation; states and logits are float32.
    """

    sizes: Sizes
    dtype: DTypeName = "float32"

    def setup(self) -> None:
        sizes, dtype = self.sizes, self.dtype
        self.input_layers = [
            Layers(1, sizes.hidden, dtype, name=f"input_{name}") for name in ("deter", "stoch", "action")
        ]
        self.hidden = BlockDense(sizes.deter, sizes.blocks, dtype)
        self.hidden_norm = NormSiLU(dtype)
        self.gates = BlockDense(3 * sizes.deter, sizes.blocks, dtype)
        self.prior_layers = Layers(2, sizes.hidden, dtype)
        self.prior_logits = dense(sizes.stoch * sizes.classes, dtype)
        self.posterior_layers = Layers(1, sizes.hidden, dtype)
        self.posterior_logits = dense(sizes.stoch * sizes.classes, dtype)

    def advance(self, latent: Latent, action: Array) -> Array:
        """Returns the next recurrent state [..., D] after action features [..., F]; larger ones than 1 are scaled to 1."""
        sizes = self.sizes
        blocks = (sizes.blocks, -1)
        action = action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))
        stoch = latent.stoch.reshape((*latent.stoch.shape[:-2], -1))
        inputs = [layer(x) for layer, x in zip(self.input_layers, (latent.deter, stoch, action), strict=True)]
        shared = jnp.concatenate(inputs, axis=-1)[..., None, :]
        lead = latent.deter.shape[:-1]
        own = latent.deter.reshape((*lead, *blocks)).astype(shared.dtype)
        shared = jnp.broadcast_to(shared, (*lead, sizes.blocks, shared.shape[-1]))
        x = jnp.concatenate([own, shared], axis=-1).reshape((*lead, -1))
        x = self.hidden_norm(self.hidden(x))
        gates = self.gates(x).reshape((*lead, *blocks)).astype(jnp.float32)
        reset, candidate, update = (gate.reshape((*lead, -1)) for gate in jnp.split(gates, 3, axis=-1))
        candidate = jnp.tanh(nn.sigmoid(reset) * candidate)
        update = nn.sigmoid(update - 1.0)
        return update * candidate + (1.0 - update) * latent.deter

    def prior(self, deter: Array) -> Array:
        """Returns log-probabilities [..., S, C] of the samples, from the recurrent state."""
        return self._log_probs(self.prior_logits(self.prior_layers(deter)))

    def posterior(self, deter: Array, tokens: Array) -> Array:
        """Returns log-probabilities [..., S, C] of the samples, from the recurrent state and the encoded observation [..., E]."""
        x = jnp.concatenate([deter, tokens.astype(deter.dtype)], axis=-1)
        return self._log_probs(self.posterior_logits(self.posterior_layers(x)))

    def _log_probs(self, logits: Array) -> Array:
        shape = (*logits.shape[:-1], self.sizes.stoch, self.sizes.classes)
        return mixed_log_probs(logits.astype(jnp.float32).reshape(shape))

    def __call__(self, latent: Latent, action: Array, tokens: Array) -> tuple[Array, Array]:
        """Applies all functions, to initialize their parameters."""
        deter = self.advance(latent, action)
        return self.prior(deter), self.posterior(deter, tokens)


def initial_latent(sizes: Sizes, num_rows: int) -> Latent:
    """Returns the state [B, ...] before an episode."""
    return Latent(jnp.zeros((num_rows, sizes.deter)), jnp.zeros((num_rows, sizes.stoch, sizes.classes)))


def mixed_log_probs(logits: Array) -> Array:
    """Returns logarithms of 99 % of the softmax of logits [..., C] and 1 % uniform probabilities."""
    return jnp.log((1.0 - UNIMIX) * jax.nn.softmax(logits) + UNIMIX / logits.shape[-1])


def sample_stoch(log_probs: Array, noise: Array) -> Array:
    """Returns one-hot samples [..., S, C], whose gradient is that of the probabilities (straight-through).

    Args:
        log_probs: [..., S, C].
        noise: [..., S, C] Gumbel noise.
    """
    one_hot = jax.nn.one_hot(jnp.argmax(log_probs + noise, axis=-1), log_probs.shape[-1])
    probs = jnp.exp(log_probs)
    return one_hot + (probs - jax.lax.stop_gradient(probs))
