"""Gated Transformer-XL: attention to the last steps of the episode. Source: Parisotto et al. 2019 (arXiv:1910.06764).

Layers are in the order of TrXL-I: layer norms on what submodules read, a ReLU on what they give, and a path from the first
layer's input to the last one's output that only gates touch. T steps are computed at once, not one after another.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import AgentState, Array
from agents.networks.cores.gtrxl_attention import WindowAttention
from agents.networks.cores.gtrxl_memory import remember, visible_steps

GATE_BIAS = 2.0
"""b_g: at first a gate lets through sigmoid(-2), about an eighth, of what its submodule says."""
_WIDENING = 4  # of the position-wise layers, as in Vaswani et al. 2017 (arXiv:1706.03762), section 3.3


class GRUGate(nn.Module):
    """What replaces x + y where y is a submodule's output: [..., H]. Source: Parisotto et al. 2019, section 3.2, "GRU"."""

    @nn.compact
    def __call__(self, x: Array, y: Array) -> Array:
        """(1 - z) x + z tanh(W_g y + U_g (r x)), with r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b_g)."""
        size = x.shape[-1]
        bias = self.param("bias", nn.initializers.constant(GATE_BIAS), (size,), jnp.float32)
        y_r, y_z, y_g = jnp.split(nn.Dense(3 * size, use_bias=False, name="w_rzg")(y), 3, axis=-1)
        x_r, x_z = jnp.split(nn.Dense(2 * size, use_bias=False, name="u_rz")(x), 2, axis=-1)
        reset, update = nn.sigmoid(y_r + x_r), nn.sigmoid(y_z + x_z - bias)
        candidate = jnp.tanh(y_g + nn.Dense(size, use_bias=False, name="u_g")(reset * x))
        return (1.0 - update) * x + update * candidate


class GTrXLLayer(nn.Module):
    """Attention and position-wise layers, each behind a gate: [B, T, H] to [B, T, H].

    Attributes:
        num_heads: of the attention; divides H.
    """

    num_heads: int

    @nn.compact
    def __call__(self, x: Array, memory: Array, visible: Array) -> Array:
        """Args: x [B, T, H]; memory [B, M, H] of this layer's inputs; visible [B, T, M + T] bool."""
        size, num_memory = x.shape[-1], memory.shape[1]
        places = nn.LayerNorm(name="attention_norm")(jnp.concatenate([memory, x], axis=1))
        attended = WindowAttention(self.num_heads, name="attention")(places[:, num_memory:], places, visible)
        x = GRUGate(name="attention_gate")(x, nn.relu(attended))
        hidden = nn.Dense(_WIDENING * size, name="wide")(nn.LayerNorm(name="dense_norm")(x))
        narrow = nn.Dense(size, name="narrow")(nn.relu(hidden))
        return GRUGate(name="dense_gate")(x, nn.relu(narrow))


class GTrXL(nn.Module):
    """T steps of B rows; each sees the M steps before it in every layer, so that the last layer hears of layers * M.

    Attributes:
        size: H, of the model and of the outputs.
        num_layers: how many.
        num_heads: of the attention; divides `size`.
    """

    size: int
    num_layers: int
    num_heads: int

    @nn.compact
    def __call__(self, features: Array, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        """Outputs [T, B, H] and the memory after them. No gradient reaches the memory before them.

        Args:
            features: [T, B, D] float32.
            state: of `gtrxl_memory.empty_memory`.
            is_first: [T, B] bool: the row forgets before that step.
        """
        state = jax.lax.stop_gradient(state)
        visible = visible_steps(state["filled"], is_first, state["memory"].shape[2])
        x = jnp.swapaxes(nn.Dense(self.size, name="input")(features), 0, 1)
        inputs: list[Array] = []
        for number in range(self.num_layers):
            inputs.append(x)
            x = GTrXLLayer(self.num_heads, name=f"layer_{number}")(x, state["memory"][:, number], visible)
        return jnp.swapaxes(x, 0, 1), remember(state, jnp.stack(inputs, axis=1), is_first)
