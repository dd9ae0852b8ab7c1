"""Multi-head attention over a set with hidden members."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import DTypeName

_HIDDEN_SCORE = -1e9  # its softmax weight is exactly 0 next to any visible score


def masked_softmax(scores: Array, visible: Array) -> Array:
    """Returns weights [..., K] of scores [..., K]: exactly 0 where `visible` (bool, broadcastable) is False.

    If nothing is visible, the weights are equal. They and their gradients are finite.
    """
    return jax.nn.softmax(jnp.where(visible, scores, _HIDDEN_SCORE), axis=-1)


def masked_mean(x: Array, visible: Array) -> Array:
    """Returns the mean [..., H] of the visible members of x [..., K, H], visible [..., K] bool; zeros if nothing is visible."""
    weight = visible.astype(x.dtype)[..., None]
    return jnp.sum(x * weight, axis=-2) / jnp.maximum(jnp.sum(weight, axis=-2), 1.0)


def masked_max(x: Array, visible: Array) -> Array:
    """Returns the maximum [..., H] of the visible members of x [..., K, H], visible [..., K] bool; zeros if nothing is visible."""
    seen = visible[..., None]
    largest = jnp.max(jnp.where(seen, x, -jnp.inf), axis=-2, initial=-jnp.inf)
    return jnp.where(jnp.any(seen, axis=-2), largest, 0.0)


def split_heads(x: Array, num_heads: int) -> Array:
    """Reshapes [..., H] to [..., num_heads, H / num_heads]."""
    return x.reshape((*x.shape[:-1], num_heads, x.shape[-1] // num_heads))


def merge_heads(x: Array) -> Array:
    """Reshapes [..., num_heads, D] to [..., num_heads * D]."""
    return x.reshape((*x.shape[:-2], -1))


class ResidualSelfAttention(nn.Module):
    """LayerNorm(x + Attention(x)) over members [..., K, H] of a set; hidden members get no attention.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2, without positions, so the order of members has no effect.

    Attributes:
        num_heads: Number of heads; divides H.
        dtype: Type of the computation, except sums and the softmax.
    """

    num_heads: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array, visible: Array) -> Array:
        """Returns [..., K, H]; outputs of hidden members are undefined."""
        size = x.shape[-1]
        query, key, value = (
            split_heads(nn.Dense(size, dtype=self.dtype, name=name)(x), self.num_heads)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("...qhd,...khd->...hqk", query, key) / (size // self.num_heads) ** 0.5
        weights = masked_softmax(scores.astype(jnp.float32), visible[..., None, None, :]).astype(value.dtype)
        attended = merge_heads(jnp.einsum("...hqk,...khd->...qhd", weights, value))
        return nn.LayerNorm(name="norm")(x + nn.Dense(size, dtype=self.dtype, name="output")(attended))
