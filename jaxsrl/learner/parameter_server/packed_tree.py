"""Pytrees packed as one array per dtype: one transfer between a replica and a parameter server, not one per leaf."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Block:
    """A packed pytree. `jax.device_put` moves it, `unpack` returns the pytree.

    Attributes:
        arrays: [number of elements] each, by dtype name.
        structure: Structure of the pytree; static under jit.
        forms: Shape and dtype name of its leaves, in order; static under jit.
    """

    arrays: dict[str, Array]
    structure: Any = dataclasses.field(metadata={"static": True})
    forms: tuple[tuple[tuple[int, ...], str], ...] = dataclasses.field(metadata={"static": True})


def pack(tree: Any) -> Block:
    """Returns the pytree as a block, bit for bit. It is worth its copy only under jit."""
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    forms = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    arrays = {
        name: jnp.concatenate([leaf.ravel() for leaf in leaves if str(leaf.dtype) == name])
        for name in dict.fromkeys(dtype for _, dtype in forms)
    }
    return Block(arrays, structure, forms)


def unpack(block: Block) -> Any:
    """Returns the pytree that was packed."""
    starts, leaves = dict.fromkeys(block.arrays, 0), list[Array]()
    for shape, dtype in block.forms:
        start = starts[dtype]
        starts[dtype] = start + math.prod(shape)
        leaves.append(block.arrays[dtype][start : starts[dtype]].reshape(shape))
    return jax.tree.unflatten(block.structure, leaves)


def unpack_stacked(blocks: Sequence[Block]) -> Any:
    """Returns blocks of one layout as one pytree, stacked along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[unpack(block) for block in blocks])
