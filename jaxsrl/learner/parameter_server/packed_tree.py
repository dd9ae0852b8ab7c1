"""Pytrees packed as one array per dtype: one transfer between a replica and a parameter server, not one per leaf."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """Layout of a block; static under jit.

    Attributes:
        structure: Structure of the pytree.
        shapes: Shapes of its leaves, in order.
        dtypes: Names of the dtypes of its leaves.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Block:
    """A packed pytree. `jax.device_put` moves it, `unpack` returns the pytree.

    Attributes:
        arrays: [number of elements] each, by dtype name.
        layout: Layout of the pytree.
    """

    arrays: dict[str, Array]
    layout: BlockLayout = dataclasses.field(metadata={"static": True})


def pack(tree: Any) -> Block:
    """Returns the pytree as a block, bit for bit. It is worth its copy only under jit."""
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    dtypes = tuple(str(leaf.dtype) for leaf in leaves)
    arrays = {
        name: jnp.concatenate([leaf.ravel() for leaf, dtype in zip(leaves, dtypes, strict=True) if dtype == name])
        for name in dict.fromkeys(dtypes)
    }
    return Block(arrays, BlockLayout(structure, tuple(leaf.shape for leaf in leaves), dtypes))


def unpack(block: Block) -> Any:
    """Returns the pytree that was packed."""
    layout, starts = block.layout, dict.fromkeys(block.arrays, 0)
    leaves: list[Array] = []
    for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True):
        start = starts[dtype]
        starts[dtype] = start + math.prod(shape)
        leaves.append(block.arrays[dtype][start : starts[dtype]].reshape(shape))
    return jax.tree.unflatten(layout.structure, leaves)


def unpack_stacked(blocks: Sequence[Block]) -> Any:
    """Returns blocks of one layout as one pytree, stacked along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[unpack(block) for block in blocks])
