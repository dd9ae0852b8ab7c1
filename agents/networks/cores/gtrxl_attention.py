"""Attention to a window of the last M steps, by content and by how long ago. Source: Dai et al. 2019 (arXiv:1901.02860)."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from agents.api import Array
from agents.networks.torsos.attention import masked_softmax, merge_heads, split_heads

_LONGEST_WAVE = 10_000.0


def sinusoids(distance: np.ndarray, size: int) -> np.ndarray:
    """Sines, then cosines, of distances [N] at wavelengths from 2 pi to 10,000 * 2 pi steps: [N, size] float32.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.5.
    """
    half = (size + 1) // 2
    angle = distance[:, None] / _LONGEST_WAVE ** (np.arange(half) / half)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :size].astype(np.float32)


def at_places(by_window: Array) -> Array:
    """Scores of places in each step's own window, moved to places among all M + T.

    Args:
        by_window: [..., T, M + 1]; at [t, j] that of step t with what stands M - j steps before it.

    Returns:
        [..., T, M + T]: at [t, t + j] what was at [t, j]; elsewhere numbers of no meaning, outside of the window.
    """
    *lead, length, window = by_window.shape
    width = window - 1 + length
    # One more column than there are places moves each row one place further than the row before it: no gather is needed.
    padded = jnp.pad(by_window, [(0, 0)] * (len(lead) + 1) + [(0, length)])
    flat = padded.reshape((*lead, length * (width + 1)))
    return flat[..., : length * width].reshape((*lead, length, width))


class WindowAttention(nn.Module):
    """T steps [B, T, H] attend to M remembered ones and to each other: [B, T, H].

    Scores are (q + u) k + (q + v) r, with r of the distance, u and v learned (Dai et al., section 3.3), over sqrt(H / heads).

    Attributes:
        num_heads: divides H.
    """

    num_heads: int

    @nn.compact
    def __call__(self, steps: Array, places: Array, visible: Array) -> Array:
        """What steps attend to.

        Args:
            steps: [B, T, H].
            places: [B, M + T, H]: the memory, and the steps again.
            visible: [B, T, M + T] bool; of each step a part of the M + 1 places that end with itself.
        """
        size = steps.shape[-1]
        num_memory = places.shape[1] - steps.shape[1]

        def project(name: str, x: Array) -> Array:
            return split_heads(nn.Dense(size, use_bias=False, name=name)(x), self.num_heads)

        query, key, value = project("query", steps), project("key", places), project("value", places)
        relative = project("relative", jnp.asarray(sinusoids(np.arange(num_memory, -1, -1), size)))
        zeros, shape = nn.initializers.zeros_init(), query.shape[2:]
        by_content = jnp.einsum("bthd,bkhd->bhtk", query + self.param("content_bias", zeros, shape), key)
        by_distance = jnp.einsum("bthd,jhd->bhtj", query + self.param("distance_bias", zeros, shape), relative)
        scores = (by_content + at_places(by_distance)) / (size // self.num_heads) ** 0.5
        weights = masked_softmax(scores, visible[:, None])
        attended = merge_heads(jnp.einsum("bhtk,bkhd->bthd", weights, value))
        return nn.Dense(size, use_bias=False, name="output")(attended)
