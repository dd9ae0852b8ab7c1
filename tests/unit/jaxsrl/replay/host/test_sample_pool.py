"""Memory of samples is used again, and never while anybody can still read it."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsrl.replay.host.sample_pool import SampleMemory, is_large

SHAPE = (4, 64, 1024)


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_arrays_are_used_again_once_nothing_refers_to_them(dtype):
    memory = SampleMemory(SHAPE, np.dtype(dtype))
    one, two = memory.take(), memory.take()
    assert one.shape == two.shape == SHAPE
    assert one.dtype == two.dtype == dtype
    addresses = {address(one), address(two)}
    assert len(addresses) == 2
    assert all(place % 4096 == 0 for place in addresses)
    del one, two
    again = memory.take()
    assert address(again) in addresses


@pytest.mark.parametrize(
    "keep",
    [
        lambda array: array,
        lambda array: array[1],
        lambda array: array.reshape(-1)[::2].T,
        lambda array: memoryview(array),
        lambda array: {"deep": [array.view(np.int8)]},
    ],
)
def test_what_is_referred_to_in_any_way_is_not_handed_out(keep):
    memory = SampleMemory(SHAPE, np.dtype("uint8"))
    array = memory.take()
    place, kept = address(array), keep(array)
    del array
    others = [memory.take() for _ in range(3)]
    assert place not in [address(other) for other in others]
    del kept
    assert address(memory.take()) == place


def test_arrays_on_the_processor_that_share_the_memory_keep_it():
    memory = SampleMemory(SHAPE, np.dtype("float32"))
    array = memory.take()
    array.fill(3.0)
    placed = jax.device_put(array, jax.devices("cpu")[0])
    place = address(array)
    shared = placed.unsafe_buffer_pointer() == place
    del array
    gc.collect()
    other = memory.take()
    assert shared, "an array that begins a page needs no copy"
    assert address(other) != place
    np.testing.assert_array_equal(placed[0, 0, :5], 3.0)


def test_computations_under_way_keep_what_they_will_read():
    @jax.jit
    def later(array):
        number = jax.lax.fori_loop(0, 40, lambda _, matrix: jnp.tanh(matrix @ matrix), jnp.full((150, 150), 1e-3))
        return number[0, 0]

    @jax.jit
    def total(array, number):
        return array.sum() + 0.0 * number

    memory, under_way = SampleMemory(SHAPE, np.dtype("float32")), 0
    for turn in range(12):
        array = memory.take()
        array.fill(1.0)
        number = later(array)
        found = total(array if turn % 2 else jax.device_put(array, jax.devices("cpu")[0]), number)
        under_way += not found.is_ready()
        del array
        memory.take().fill(7.0)
        assert float(found) == np.prod(SHAPE)
    assert under_way > 0


def test_no_more_than_eight_are_kept():
    memory = SampleMemory(SHAPE, np.dtype("uint8"))
    arrays = [memory.take() for _ in range(12)]
    assert len({address(array) for array in arrays}) == 12
    assert len(memory._kept) == 8


def test_small_arrays_are_left_to_numpy():
    assert not is_large(4_000)
    assert is_large(1_000_000)
