"""A pytree as one array a dtype: what travels between a replica and a parameter server in one transfer, not one a leaf."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """What a block holds; static under jit.

    Attributes:
        structure: of the pytree.
        shapes: of its leaves, in order.
        dtypes: names, of its leaves.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Block:
    """A packed pytree. `jax.device_put` moves it; its leaves are there after `unpack`.

    Attributes:
        arrays: [number of elements] each, by dtype name.
        layout: of the pytree.
    """

    arrays: dict[str, Array]
    layout: BlockLayout = dataclasses.field(metadata={"static": True})


def pack(tree: Any) -> Block:
    """The pytree as a block, bit for bit. Worth its copy under jit only."""
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    dtypes = tuple(str(leaf.dtype) for leaf in leaves)
    arrays = {
        name: jnp.concatenate([leaf.ravel() for leaf, dtype in zip(leaves, dtypes, strict=True) if dtype == name])
        for name in dict.fromkeys(dtypes)
    }
    return Block(arrays, BlockLayout(structure, tuple(leaf.shape for leaf in leaves), dtypes))


def unpack(block: Block) -> Any:
    """The pytree that was packed."""
    layout, begins = block.layout, dict.fromkeys(block.arrays, 0)
    leaves: list[Array] = []
    for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True):
        begin = begins[dtype]
        begins[dtype] = begin + math.prod(shape)
        leaves.append(block.arrays[dtype][begin : begins[dtype]].reshape(shape))
    return jax.tree.unflatten(layout.structure, leaves)


def unpack_stacked(blocks: Sequence[Block]) -> Any:
    """Blocks of one layout as one pytree, stacked along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[unpack(block) for block in blocks])
