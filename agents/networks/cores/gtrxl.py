"""Gated Transformer-XL: attention to the last steps of the episode. Source: Parisotto et al. 2019 (arXiv:1910.06764).

Layers have the order of TrXL-I: layer norms on the inputs of submodules, a ReLU on their outputs, and an identity path that only
gates change. All T steps are computed at once.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import AgentState, Array
from agents.networks.cores.gtrxl_attention import WindowAttention
from agents.networks.cores.gtrxl_memory import update_memory, visible_steps

GATE_BIAS = 2.0
"""b_g: a gate initially passes sigmoid(-2), about an eighth, of its submodule's output."""
_WIDENING = 4  # of the position-wise layers, as in Vaswani et al. 2017 (arXiv:1706.03762), section 3.3


class GRUGate(nn.Module):
    """Gate in place of x + y for a submodule's output y: [..., H]. Source: Parisotto et al. 2019, section 3.2, "GRU"."""

    @nn.compact
    def __call__(self, x: Array, y: Array) -> Array:
        """Returns (1 - z) x + z tanh(W_g y + U_g (r x)), with r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b_g)."""
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
        num_heads: Number of attention heads; divides H.
    """

    num_heads: int

    @nn.compact
    def __call__(self, x: Array, memory: Array, visible: Array) -> Array:
        """Applies the layer to x [B, T, H], memory [B, M, H] of its inputs, and visible [B, T, M + T] bool."""
        size, num_memory = x.shape[-1], memory.shape[1]
        positions = nn.LayerNorm(name="attention_norm")(jnp.concatenate([memory, x], axis=1))
        attended = WindowAttention(self.num_heads, name="attention")(positions[:, num_memory:], positions, visible)
        x = GRUGate(name="attention_gate")(x, nn.relu(attended))
        hidden = nn.Dense(_WIDENING * size, name="wide")(nn.LayerNorm(name="dense_norm")(x))
        narrow = nn.Dense(size, name="narrow")(nn.relu(hidden))
        return GRUGate(name="dense_gate")(x, nn.relu(narrow))


class GTrXL(nn.Module):
    """T steps of B rows. Each layer attends to the M steps before, so the last layer depends on layers * M steps.

    Attributes:
        size: H, size of the model and of the outputs.
        num_layers: Number of layers.
        num_heads: Number of attention heads; divides `size`.
    """

    size: int
    num_layers: int
    num_heads: int

    @nn.compact
    def __call__(self, features: Array, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        """Returns outputs [T, B, H] and the next memory. No gradient reaches the previous memory.

        Args:
            features: [T, B, D] float32.
            state: Memory, as from `gtrxl_memory.init_memory`.
            is_first: [T, B] bool: the row's memory is cleared before that step.
        """
        state = jax.lax.stop_gradient(state)
        visible = visible_steps(state["filled"], is_first, state["memory"].shape[2])
        x = jnp.swapaxes(nn.Dense(self.size, name="input")(features), 0, 1)
        inputs: list[Array] = []
        for number in range(self.num_layers):
            inputs.append(x)
            x = GTrXLLayer(self.num_heads, name=f"layer_{number}")(x, state["memory"][:, number], visible)
        return jnp.swapaxes(x, 0, 1), update_memory(state, jnp.stack(inputs, axis=1), is_first)
