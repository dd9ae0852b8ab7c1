"""Gated Transformer-XL: attention to the last steps of the episode. Source: Parisotto et al. 2019 (arXiv:1910.06764).

Layers have the order of TrXL-I: layer norms on the inputs of submodules, a ReLU on their outputs, and an identity path that only
gates change. All T steps are computed at once. The memory holds the inputs of the layers at the last M steps of the episode.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from agents.api import AgentState, Array
from agents.networks.config import DTypeName
from agents.networks.torsos.attention import masked_softmax, merge_heads, split_heads

GATE_BIAS = 2.0
"""b_g: a gate initially passes sigmoid(-2), about an eighth, of its submodule's output."""
_WIDENING = 4  # of the position-wise layers, as in Vaswani et al. 2017 (arXiv:1706.03762), section 3.3
_LONGEST_WAVE = 10_000.0


class GRUGate(nn.Module):
    """Gate in place of x + y for a submodule's output y: [..., H]. Source: Parisotto et al. 2019, section 3.2, "GRU".

    Attributes:
        dtype: Type of the matrix products.
    """

    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array, y: Array) -> Array:
        """Returns (1 - z) x + z tanh(W_g y + U_g (r x)), with r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b_g)."""
        size = x.shape[-1]
        bias = self.param("bias", nn.initializers.constant(GATE_BIAS), (size,), jnp.float32)
        y_r, y_z, y_g = jnp.split(nn.Dense(3 * size, use_bias=False, dtype=self.dtype, name="w_rzg")(y), 3, axis=-1)
        x_r, x_z = jnp.split(nn.Dense(2 * size, use_bias=False, dtype=self.dtype, name="u_rz")(x), 2, axis=-1)
        reset, update = nn.sigmoid(y_r + x_r), nn.sigmoid(y_z + x_z - bias)
        candidate = jnp.tanh(y_g + nn.Dense(size, use_bias=False, dtype=self.dtype, name="u_g")(reset * x))
        return (1.0 - update) * x + update * candidate


class GTrXLLayer(nn.Module):
    """Attention and position-wise layers, each behind a gate: [B, T, H] to [B, T, H].

    Attributes:
        num_heads: Number of attention heads; divides H.
        dtype: Type of the matrix products; sums along the layers are float32.
    """

    num_heads: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array, memory: Array, visible: Array) -> Array:
        """Applies the layer to x [B, T, H], memory [B, M, H] of its inputs, and visible [B, T, M + T] bool."""
        size, num_memory = x.shape[-1], memory.shape[1]
        positions = nn.LayerNorm(name="attention_norm")(jnp.concatenate([memory, x], axis=1))
        attended = WindowAttention(self.num_heads, self.dtype, name="attention")(
            positions[:, num_memory:], positions, visible
        )
        x = GRUGate(self.dtype, name="attention_gate")(x, nn.relu(attended))
        hidden = nn.Dense(_WIDENING * size, dtype=self.dtype, name="wide")(nn.LayerNorm(name="dense_norm")(x))
        narrow = nn.Dense(size, dtype=self.dtype, name="narrow")(nn.relu(hidden))
        return GRUGate(self.dtype, name="dense_gate")(x, nn.relu(narrow))


class GTrXL(nn.Module):
    """T steps of B rows. Each layer attends to the M steps before, so the last layer depends on layers * M steps.

    Attributes:
        size: H, size of the model and of the outputs.
        num_layers: Number of layers.
        num_heads: Number of attention heads; divides `size`.
        dtype: Type of the matrix products.
    """

    size: int
    num_layers: int
    num_heads: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, features: Array, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        """Returns outputs [T, B, H] and the next memory. No gradient reaches the previous memory.

        Args:
            features: [T, B, D] float32.
            state: Memory, as from `init_memory`.
            is_first: [T, B] bool: the row's memory is cleared before that step.
        """
        state = jax.lax.stop_gradient(state)
        visible = visible_steps(state["filled"], is_first, state["memory"].shape[2])
        x = jnp.swapaxes(nn.Dense(self.size, dtype=self.dtype, name="input")(features), 0, 1).astype(jnp.float32)
        inputs: list[Array] = []
        for number in range(self.num_layers):
            inputs.append(x)
            x = GTrXLLayer(self.num_heads, self.dtype, name=f"layer_{number}")(x, state["memory"][:, number], visible)
        return jnp.swapaxes(x, 0, 1), update_memory(state, jnp.stack(inputs, axis=1), is_first)


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
    """Attention of T steps [B, T, H] to M steps of memory and to each other: [B, T, H]. Source: Dai et al. 2019 (arXiv:1901.02860).

    Scores are ((q + u) k + (q + v) r) / sqrt(H / heads), where r encodes the distance and u and v are learned (Dai et al.,
    section 3.3).

    Attributes:
        num_heads: Number of heads; divides H.
        dtype: Type of the matrix products.
    """

    num_heads: int
    dtype: DTypeName = "float32"

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
            return split_heads(nn.Dense(size, use_bias=False, dtype=self.dtype, name=name)(x), self.num_heads)

        query, key, value = project("query", steps), project("key", positions), project("value", positions)
        relative = project("relative", jnp.asarray(sinusoids(np.arange(num_memory, -1, -1), size)))
        zeros, shape = nn.initializers.zeros_init(), query.shape[2:]
        content_bias, distance_bias = (
            self.param(name, zeros, shape).astype(query.dtype) for name in ("content_bias", "distance_bias")
        )
        by_content = jnp.einsum("bthd,bkhd->bhtk", query + content_bias, key)
        by_distance = jnp.einsum("bthd,jhd->bhtj", query + distance_bias, relative)
        scores = (by_content + shift_to_positions(by_distance)) / (size // self.num_heads) ** 0.5
        weights = masked_softmax(scores.astype(jnp.float32), visible[:, None]).astype(value.dtype)
        attended = merge_heads(jnp.einsum("bhtk,bkhd->bthd", weights, value))
        return nn.Dense(size, use_bias=False, dtype=self.dtype, name="output")(attended)


def init_memory(num_rows: int, num_layers: int, num_memory: int, size: int) -> AgentState:
    """Returns the memory before the first step.

    Returns:
        "memory": [B, num_layers, num_memory, size] float32, the newest step last, zeros for missing steps. "filled": [B] int32,
        the number of stored steps.
    """
    return {
        "memory": jnp.zeros((num_rows, num_layers, num_memory, size), jnp.float32),
        "filled": jnp.zeros((num_rows,), jnp.int32),
    }


def visible_steps(filled: Array, is_first: Array, num_memory: int) -> Array:
    """Returns the visibility of M steps in memory and T new steps for each new step.

    A step attends to itself and to at most M earlier steps of its episode. The result does not depend on the division into calls.

    Args:
        filled: [B] int32, number of steps in memory.
        is_first: [T, B] bool.
        num_memory: M.

    Returns:
        [B, T, M + T] bool.
    """
    length = is_first.shape[0]
    # Step t has position M + t of M + T.
    distance = num_memory + jnp.arange(length)[:, None] - jnp.arange(num_memory + length)[None]
    in_window = (distance >= 0) & (distance <= num_memory)
    episode = _episodes(filled, is_first, num_memory)
    return in_window & (episode[:, None, :] == episode[:, num_memory:, None])


def update_memory(state: AgentState, inputs: Array, is_first: Array) -> AgentState:
    """Returns the memory after T steps.

    Args:
        state: Memory before them, as from `init_memory`.
        inputs: Inputs of the layers, [B, num_layers, T, size].
        is_first: [T, B] bool.
    """
    num_memory = state["memory"].shape[2]
    episode = _episodes(state["filled"], is_first, num_memory)
    in_episode = (episode == episode[:, -1:])[:, -num_memory:]
    memory = jnp.concatenate([state["memory"], inputs], axis=2)[:, :, -num_memory:]
    # Zeros for steps of earlier episodes: the memory does not depend on the number of steps of a call.
    memory = jnp.where(in_episode[:, None, :, None], memory, 0.0)
    return {"memory": memory, "filled": jnp.sum(in_episode, axis=1, dtype=jnp.int32)}


def _episodes(filled: Array, is_first: Array, num_memory: int) -> Array:
    """Returns the episode number of each position, [B, M + T] int32: 0 for the episode in memory, -1 for empty positions."""
    is_filled = jnp.arange(num_memory) >= num_memory - filled[:, None]
    episode = jnp.cumsum(is_first.T, axis=1, dtype=jnp.int32)
    return jnp.concatenate([jnp.where(is_filled, 0, -1), episode], axis=1)
