"""Packed pytrees come back bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsrl.learner.parameter_server.packed_tree import pack, unpack, unpack_stacked


def tree(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "weights": [rng.normal(size=(3, 4)).astype(np.float32), np.array([np.nan, -0.0, np.inf], np.float32)],
        "count": np.int32(2**31 - 1 - seed),
        "half": (jnp.asarray(rng.normal(size=(2, 1, 2)), jnp.bfloat16), np.zeros((0, 5), np.float32)),
        "flag": np.array([True, False]),
        "none": None,
    }


def assert_same_bits(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_packed_pytree_comes_back_bit_for_bit():
    block = jax.jit(pack)(tree())
    assert {name: array.shape for name, array in block.arrays.items()} == {
        "float32": (15,),
        "int32": (1,),
        "bfloat16": (4,),
        "bool": (2,),
    }
    assert_same_bits(jax.jit(unpack)(block), tree())


def test_a_block_moves_like_a_pytree_and_compiles_once():
    device = jax.local_devices()[1]
    unpacked = jax.jit(lambda block: unpack(block))  # a function of its own: jax shares compiled programs by function
    for seed in range(3):
        block = jax.device_put(pack(tree(seed)), device)
        assert all(array.devices() == {device} for array in block.arrays.values())
        assert_same_bits(unpacked(block), tree(seed))
    assert unpacked._cache_size() == 1


def test_blocks_are_stacked_leaf_by_leaf():
    blocks = [pack({"a": jnp.float32(number), "b": jnp.arange(2) + number}) for number in range(3)]
    stacked = unpack_stacked(blocks)
    np.testing.assert_array_equal(stacked["a"], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(stacked["b"], [[0, 1], [1, 2], [2, 3]])
