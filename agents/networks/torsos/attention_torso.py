"""Attention over entities: features that do not depend on the order of entities in an observation.

Source: Baker et al. 2020 (arXiv:1909.07528), appendix B, "Policy architecture".
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import LayerOptions
from agents.networks.torsos.attention import ResidualSelfAttention, masked_max, masked_mean
from agents.networks.torsos.entity_sets import EntitySet
from agents.networks.torsos.mlp import MLP, activate
from agents.networks.torsos.named_dense import NamedDense

_POOLED = "~entities"  # no leaf has this name: `path_name` writes "~" as "~0"


class EntityTorso(nn.Module):
    """Leaves by name, some of them EntitySets, to features [..., hidden_sizes[-1]].

    Each entity passes with the other leaves through a dense layer of its set. All entities of all sets attend to the visible ones.
    The mean of the visible entities and the other leaves pass through dense layers. Without attention heads, mean and maximum of
    the visible entities take the place of attention and mean (Zaheer et al. 2017, arXiv:1703.06114).

    Attributes:
        hidden_sizes: Sizes of the dense layers; the first is also the size of an entity.
        layers: Options of the dense layers.
        num_heads: Number of attention heads; divides `hidden_sizes[0]`. 0: no attention.
    """

    hidden_sizes: Sequence[int]
    layers: LayerOptions
    num_heads: int

    @nn.compact
    def __call__(self, inputs: dict[str, Any]) -> Array:
        layers, size = self.layers, self.hidden_sizes[0]
        sets: dict[str, EntitySet] = {name: x for name, x in inputs.items() if isinstance(x, EntitySet)}
        others: dict[str, Array] = {name: x for name, x in inputs.items() if name not in sets}
        entities = [
            NamedDense(size, layers.dtype, name=f"entity/{name}")(_entity_inputs(name, sets[name], others))
            for name in sorted(sets)
        ]
        visible = jnp.concatenate([sets[name].visible for name in sorted(sets)], axis=-1)
        x = activate(layers, jnp.concatenate(entities, axis=-2)).astype(jnp.float32)
        if self.num_heads:
            pooled = masked_mean(
                ResidualSelfAttention(self.num_heads, layers.dtype, name="attention")(x, visible), visible
            )
        else:
            pooled = jnp.concatenate([masked_mean(x, visible), masked_max(x, visible)], axis=-1)
        x = activate(layers, NamedDense(size, layers.dtype, name="input")({**others, _POOLED: pooled}))
        return MLP(self.hidden_sizes[1:], layers)(x)


def _entity_inputs(name: str, entities: EntitySet, others: dict[str, Array]) -> dict[str, Array]:
    """Returns the inputs of a set's dense layer: the entities [..., N, F], and other leaves [..., 1, D], the same for each."""
    # Hidden entities become zeros: their values may be NaN.
    features = jnp.where(entities.visible[..., None], entities.features, 0.0)
    return {**{other: x[..., None, :] for other, x in others.items()}, name: features}
