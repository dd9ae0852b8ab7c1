"""Attention to a window of the last M steps, by content and by distance in time. Source: Dai et al. 2019 (arXiv:1901.02860)."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from agents.api import Array
from agents.networks.torsos.attention import masked_softmax, merge_heads, split_heads

_LONGEST_WAVE = 10_000.0


def sinusoids(distance: np.ndarray, size: int) -> np.ndarray:
    """Returns sines, then cosines, of distances [N] at wavelengths from 2 pi to 10,000 * 2 pi steps: [N, size] float32.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.5.
    """
    half = (size + 1) // 2
    angle = distance[:, None] / _LONGEST_WAVE ** (np.arange(half) / half)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :size].astype(np.float32)


def shift_to_positions(by_window: Array) -> Array:
    """Shifts scores from positions in each step's window to positions among all M + T steps.

    Args:
        by_window: [..., T, M + 1]; at [t, j] the score of step t with the step M - j steps before it.

    Returns:
        [..., T, M + T]: the entry [t, j] moves to [t, t + j]. Entries outside of the window are undefined.
    """
    *lead, length, window = by_window.shape
    width = window - 1 + length
    # One column more than positions shifts each row by one more than the previous row, without a gather.
    padded = jnp.pad(by_window, [(0, 0)] * (len(lead) + 1) + [(0, length)])
    flat = padded.reshape((*lead, length * (width + 1)))
    return flat[..., : length * width].reshape((*lead, length, width))


class WindowAttention(nn.Module):
    """Attention of T steps [B, T, H] to M steps of memory and to each other: [B, T, H].

    Scores are ((q + u) k + (q + v) r) / sqrt(H / heads), where r encodes the distance and u and v are learned (Dai et al.,
    section 3.3).

    Attributes:
        num_heads: Number of heads; divides H.
    """

    num_heads: int

    @nn.compact
    def __call__(self, steps: Array, positions: Array, visible: Array) -> Array:
        """Returns the attended values of each step.

        Args:
            steps: [B, T, H].
            positions: [B, M + T, H]: the memory, then the steps.
            visible: [B, T, M + T] bool; for each step a subset of the M + 1 positions up to its own.
        """
        size = steps.shape[-1]
        num_memory = positions.shape[1] - steps.shape[1]

        def project(name: str, x: Array) -> Array:
            return split_heads(nn.Dense(size, use_bias=False, name=name)(x), self.num_heads)

        query, key, value = project("query", steps), project("key", positions), project("value", positions)
        relative = project("relative", jnp.asarray(sinusoids(np.arange(num_memory, -1, -1), size)))
        zeros, shape = nn.initializers.zeros_init(), query.shape[2:]
        by_content = jnp.einsum("bthd,bkhd->bhtk", query + self.param("content_bias", zeros, shape), key)
        by_distance = jnp.einsum("bthd,jhd->bhtj", query + self.param("distance_bias", zeros, shape), relative)
        scores = (by_content + shift_to_positions(by_distance)) / (size // self.num_heads) ** 0.5
        weights = masked_softmax(scores, visible[:, None])
        attended = merge_heads(jnp.einsum("bhtk,bkhd->bthd", weights, value))
        return nn.Dense(size, use_bias=False, name="output")(attended)
