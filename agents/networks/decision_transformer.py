"""A causal transformer over returns-to-go, observations and actions. Source: Chen et al. 2021 (arXiv:2106.01345), section 3.

Layers have the order of GPT-2: layer norms on the inputs of submodules, and one on the outputs of the last layer.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.observation_inputs import make_inputs, validate_torso
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Path

_INIT = nn.initializers.normal(0.02)
_TOKENS = 3  # of a step, in order: return-to-go, observation, action


class TransformerSizes(NamedTuple):
    """Attributes are those of `DecisionTransformerConfig`."""

    embedding_size: int
    num_layers: int
    num_heads: int
    dropout: float
    max_episode_steps: int


class Sequence(NamedTuple):
    """L steps of B rows.

    Attributes:
        observed: [B, L, H] float32, embedded observations.
        action: [B, L, A] float32, encoded actions.
        return_to_go: [B, L] float32, scaled.
        episode_step: [B, L] int32, number of earlier steps of the episode.
        visible: [B, L, L] bool; whether step i may attend to step j. Later steps are hidden in any case, and the own one is not.
    """

    observed: Array
    action: Array
    return_to_go: Array
    episode_step: Array
    visible: Array


class SequenceNetwork(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        embed: Maps (params, observation [B, ...]) to embedded observations [B, H]; [T, B] may replace [B].
        outputs: Maps (params, sequence, dropout key or None) to outputs [B, L, A] of the next action at each observation.
    """

    init: Callable[[Array], Params]
    embed: Callable[[Params, Observation], Array]
    outputs: Callable[[Params, Sequence, Array | None], Array]


class _Layer(nn.Module):
    num_heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: Array, mask: Array, deterministic: bool) -> Array:
        """Returns [B, K, H] of tokens [B, K, H]; mask [B, 1, K, K] bool, whether a token attends to another."""
        size = x.shape[-1]
        attention = nn.MultiHeadDotProductAttention(
            self.num_heads,
            kernel_init=_INIT,
            dropout_rate=self.dropout,
            broadcast_dropout=False,  # another mask for each row and head, as in the published code
            deterministic=deterministic,
            name="attention",
        )
        drop = nn.Dropout(self.dropout, deterministic=deterministic)
        x = x + drop(attention(nn.LayerNorm(name="attention_norm")(x), mask=mask))
        hidden = nn.relu(nn.Dense(4 * size, kernel_init=_INIT, name="wide")(nn.LayerNorm(name="dense_norm")(x)))
        return x + drop(nn.Dense(size, kernel_init=_INIT, name="narrow")(hidden))


class _Transformer(nn.Module):
    sizes: TransformerSizes
    num_outputs: int

    @nn.compact
    def __call__(self, sequence: Sequence, deterministic: bool) -> Array:
        sizes, (rows, length, _) = self.sizes, sequence.observed.shape

        def embed(name: str, values: Array) -> Array:
            return nn.Dense(sizes.embedding_size, kernel_init=_INIT, name=name)(values)

        number = jnp.clip(sequence.episode_step, 0, sizes.max_episode_steps - 1)
        time = nn.Embed(sizes.max_episode_steps, sizes.embedding_size, embedding_init=_INIT, name="time")(number)
        tokens = (
            embed("return_to_go", sequence.return_to_go[..., None]),
            sequence.observed,
            embed("action", sequence.action),
        )
        x = jnp.stack([token + time for token in tokens], axis=2).reshape((rows, _TOKENS * length, -1))
        x = nn.Dropout(sizes.dropout, deterministic=deterministic)(nn.LayerNorm(name="input_norm")(x))
        mask = token_mask(sequence.visible)[:, None]
        for layer in range(sizes.num_layers):
            x = _Layer(sizes.num_heads, sizes.dropout, name=f"layer_{layer}")(x, mask, deterministic)
        at_observations = nn.LayerNorm(name="output_norm")(x)[:, 1::_TOKENS]
        return nn.Dense(self.num_outputs, kernel_init=_INIT, name="output")(at_observations)


def token_mask(visible: Array) -> Array:
    """Returns [B, 3 L, 3 L] bool, whether a token attends to another, from the visibility of steps [B, L, L]."""
    length = visible.shape[-1]
    steps = visible | jnp.eye(length, dtype=bool)
    of_tokens = jnp.repeat(jnp.repeat(steps, _TOKENS, axis=1), _TOKENS, axis=2)
    return of_tokens & jnp.tri(_TOKENS * length, dtype=bool)


def make_sequence_network(
    config: NetworkConfig, sizes: TransformerSizes, spec: EnvSpec, num_outputs: int, without: Path
) -> SequenceNetwork:
    """Returns the network; leaves of the observation that only a critic may see are no input, nor is that at `without`.

    Args:
        config: Torso of the observations.
        sizes: Sizes of the transformer.
        spec: Environment.
        num_outputs: A, also the size of an encoded action.
        without: Keys of one leaf of the observation.

    Raises:
        UserError: If the torso does not fit the observations.
    """
    validate_read(config, "a sequence model")
    inputs = make_inputs(spec, config.torso, without=without)
    hidden = spec.critic_only
    seen = tuple((path, leaf) for path, leaf in inputs.leaves if not hidden or path[: len(hidden)] != hidden)
    inputs = dataclasses.replace(inputs, leaves=seen)
    validate_torso(spec, inputs)
    branch = make_branch(config, inputs, {"token": HeadSize(sizes.embedding_size, 1.0)})
    transformer = _Transformer(sizes, num_outputs)

    def init(key: Array) -> Params:
        branch_key, transformer_key = jax.random.split(key)
        zeros = jnp.zeros((1, 1), jnp.float32)
        empty = Sequence(
            jnp.zeros((1, 1, sizes.embedding_size)),
            jnp.zeros((1, 1, num_outputs)),
            zeros,
            zeros.astype(jnp.int32),
            jnp.ones((1, 1, 1), bool),
        )
        return {"observation": branch.init(branch_key), "transformer": transformer.init(transformer_key, empty, True)}

    def embed(params: Params, observation: Observation) -> Array:
        return branch.outputs(params["observation"], observation)["token"]

    def outputs(params: Params, sequence: Sequence, key: Array | None) -> Array:
        rngs = None if key is None else {"dropout": key}
        return transformer.apply(params["transformer"], sequence, key is None, rngs=rngs)  # pyright: ignore[reportReturnType]

    return SequenceNetwork(init, embed, outputs)
