"""Packed calls: one array goes to the device and one comes back, and no bit of what is computed changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Agent, OnPolicy
from jaxsrl.collect.inference import packed_act
from jaxsrl.collect.inference.act import make_act, row_keys
from jaxsrl.collect.inference.packed_act import Form, join_on_device

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "int32", "uint32", "float32"]


def random_array(rng, dtype, shape):
    """Any bits that the dtype can have, NaN and infinities among them."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    dtype = jnp.dtype(dtype)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 3), (4, 3, 2, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_to_the_device_and_back_to_the_bit(dtype, shape):
    rng = np.random.default_rng(1)
    tree = {
        "a": random_array(rng, dtype, shape),
        "b": (random_array(rng, "uint8", (3,)), random_array(rng, dtype, (7,))),
    }
    form = Form.of(tree)
    buffer = form.allocate()
    for view, leaf in zip(form.views(buffer), jax.tree.leaves(tree), strict=True):
        view[...] = leaf
    there = jax.jit(form.split_on_device)(buffer)
    assert jax.tree.structure(there) == jax.tree.structure(tree)
    assert [leaf.dtype for leaf in jax.tree.leaves(there)] == [leaf.dtype for leaf in jax.tree.leaves(tree)]
    assert bits(there) == bits(tree)
    back = np.asarray(jax.jit(join_on_device)(tree))
    assert back.shape == buffer.shape
    assert bits(form.views(back)) == bits(tree)


def looking_agent():
    """An agent whose action, extras and memory depend on every array that it gets."""

    def act(params, observation, agent_state, is_first, keys, mode):
        seen = sum(leaf.astype(jnp.float32).reshape(leaf.shape[0], -1).sum(1) for leaf in jax.tree.leaves(observation))
        luck = jax.vmap(jax.random.normal)(keys)
        state = jnp.where(is_first, 0.0, agent_state) + seen * params + luck
        action = {"move": (state * 7).astype(jnp.int32), "force": jnp.stack([state, -state], 1), "fire": state > 0}
        return action, {"value": state, "mask": observation["mask"]}, state

    return Agent("looking", None, lambda rows: jnp.zeros(rows), act, None, {}, OnPolicy())


def inputs(rows, rng):
    observation = {
        "mask": rng.random((rows, 3)) < 0.5,
        "pixels": rng.integers(0, 255, (rows, 4, 4, 3), dtype=np.uint8),
        "vector": rng.normal(size=(rows, 5)),  # float64, which jax makes float32
        "parts": (rng.normal(size=(rows, 2)).astype(np.float32), rng.integers(-9, 9, (rows,), dtype=np.int64)),
    }
    return observation, rng.random(rows) < 0.5, np.full(rows, 12, np.uint32)


@pytest.mark.parametrize("most_bytes", [packed_act._MOST_BYTES, 100, 0])
@pytest.mark.parametrize("number", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_packed_calls_act_as_calls_that_are_not_to_the_bit(number, most_bytes, monkeypatch):
    monkeypatch.setattr(packed_act, "_MOST_BYTES", most_bytes)
    device, rng = jax.devices()[number], np.random.default_rng(3)
    plain, packed = (make_act(looking_agent(), platform=platform) for platform in ("cpu", "gpu"))
    params = jax.device_put(jnp.float32(0.3), device)
    keys = row_keys(jax.device_put(jax.random.key(1), device), range(10))
    for rows in (6, 4, 6):
        states = [jax.device_put(np.zeros(rows, np.float32), device)] * 2
        for chosen in (None, rng.permutation(10)[:rows].astype(np.uint32)):
            observation, is_first, steps = inputs(rows, rng)
            mine = keys if chosen is not None else keys[:rows]
            results = [
                act(params, observation, state, is_first, mine, steps, chosen)
                for act, state in zip((plain, packed), states, strict=True)
            ]
            states = [after for _, _, after in results]
            assert bits(results[0]) == bits(results[1])
            assert jax.tree.structure(results[0]) == jax.tree.structure(results[1])
            assert states[1].devices() == {device}


def test_packed_act_transfers_one_array_each_way(monkeypatch):
    packed = make_act(looking_agent(), platform="gpu")
    calls, program = [], packed._program(jax.devices()[0])

    def counted(form, *arguments):
        results = program(form, *arguments)
        calls.append((arguments, results))
        return results

    monkeypatch.setattr(packed, "_program", lambda device: counted)
    observation, is_first, steps = inputs(4, np.random.default_rng(3))
    state, keys = jax.device_put(np.zeros(4, np.float32), jax.devices()[0]), row_keys(jax.random.key(1), range(4))
    for _ in range(3):
        action, extras, state = packed(jnp.float32(1.0), observation, state, is_first, keys, steps)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves((action, extras)))
    for arguments, (buffer, after) in calls:
        host = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, np.ndarray)]
        assert [(array.dtype, array.ndim) for array in host] == [(np.dtype(np.uint8), 1)]
        assert (buffer.dtype, buffer.ndim, after.shape) == (np.dtype(np.uint8), 1, (4,))
        assert (buffer.sharding.memory_kind, after.sharding.memory_kind) == ("pinned_host", "device")
    assert program._cache_size() == 1


def test_large_arrays_are_not_packed(monkeypatch):
    monkeypatch.setattr(packed_act, "_MOST_BYTES", 100)  # the images of four rows have 192
    packed = make_act(looking_agent(), platform="gpu")
    seen, program = [], packed._program(jax.devices()[0])

    def watched(call, buffer, large, *arguments):
        seen.append((buffer.nbytes, [array.shape for array in large.values()]))
        return program(call, buffer, large, *arguments)

    monkeypatch.setattr(packed, "_program", lambda device: watched)
    observation, is_first, steps = inputs(4, np.random.default_rng(3))
    packed(jnp.float32(1.0), observation, jnp.zeros(4), is_first, row_keys(jax.random.key(1), range(4)), steps)
    ((packed_bytes, large),) = seen
    assert large == [(4, 4, 4, 3), (4, 5)]  # float64 vectors have 160
    assert packed_bytes < 192


def test_packed_act_results_survive_the_next_call():
    packed = make_act(looking_agent(), platform="gpu")
    rng, keys = np.random.default_rng(3), row_keys(jax.random.key(1), range(4))
    found = []
    for _ in range(4):
        observation, is_first, steps = inputs(4, rng)
        state = jax.device_put(np.zeros(4, np.float32))
        results = packed(jnp.float32(1.0), observation, state, is_first, keys, steps)
        found.append((results, bits(results)))
    assert all(bits(results) == before for results, before in found)
    assert len({tuple(before) for _, before in found}) == 4
