"""Attention of several heads over a set of which some members are hidden."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array

_HIDDEN_SCORE = -1e9  # exp of it is exactly 0 beside any score that is not hidden


def masked_softmax(scores: Array, visible: Array) -> Array:
    """Weights [..., K] of scores [..., K]: exactly 0 where `visible` (bool, broadcastable) is False.

    Where nothing is visible the weights are equal and of no meaning: they are finite, and so are their gradients.
    """
    return jax.nn.softmax(jnp.where(visible, scores, _HIDDEN_SCORE), axis=-1)


def masked_mean(x: Array, visible: Array) -> Array:
    """Mean [..., H] of the visible ones of x [..., K, H], visible [..., K] bool; zeros where nothing is visible."""
    weight = visible.astype(x.dtype)[..., None]
    return jnp.sum(x * weight, axis=-2) / jnp.maximum(jnp.sum(weight, axis=-2), 1.0)


def split_heads(x: Array, num_heads: int) -> Array:
    """[..., H] as [..., num_heads, H / num_heads]."""
    return x.reshape((*x.shape[:-1], num_heads, x.shape[-1] // num_heads))


def merge_heads(x: Array) -> Array:
    """[..., num_heads, D] as [..., num_heads * D]."""
    return x.reshape((*x.shape[:-2], -1))


class ResidualSelfAttention(nn.Module):
    """LayerNorm(x + Attention(x)) over members [..., K, H] of a set, of which only the visible [..., K] are attended to.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2, without positions: the order of the members does not matter.

    Attributes:
        num_heads: divides H.
    """

    num_heads: int

    @nn.compact
    def __call__(self, x: Array, visible: Array) -> Array:
        """[..., K, H]; what comes out for a hidden member has no meaning."""
        size = x.shape[-1]
        query, key, value = (
            split_heads(nn.Dense(size, name=name)(x), self.num_heads) for name in ("query", "key", "value")
        )
        scores = jnp.einsum("...qhd,...khd->...hqk", query, key) / (size // self.num_heads) ** 0.5
        weights = masked_softmax(scores, visible[..., None, None, :])
        attended = merge_heads(jnp.einsum("...hqk,...khd->...qhd", weights, value))
        return nn.LayerNorm(name="norm")(x + nn.Dense(size, name="output")(attended))
