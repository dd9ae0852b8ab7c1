"""Rows as arrays and back, typed keys among them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.device_loop.checkpoint_rows import rows_from_arrays, rows_to_arrays
from jaxsrl.device_loop.collect import DeviceRows
from jaxsrl.device_loop.episode_totals import init_episode_sums
from jaxsrl.envs.autoreset import RowsState

ROWS = 3


def rows_with_a_key(num_rows=ROWS) -> DeviceRows:
    """Rows of an environment that keeps a typed key in its state, and a policy that remembers."""
    ids = jnp.arange(num_rows, dtype=jnp.uint32)
    env_state = {"key": jax.random.split(jax.random.key(5), num_rows), "position": jnp.ones((num_rows, 2))}
    flags = jnp.arange(num_rows) % 2 == 0
    envs = RowsState(env_state, 2.0 * jnp.ones((num_rows, 4)), flags, ~flags, ids, ids + 7, ids + 9)
    return DeviceRows(envs, {"memory": jnp.full((num_rows, 5), 0.5)}, init_episode_sums(num_rows))


def test_rows_come_back_as_they_were():
    rows = rows_with_a_key()
    arrays = rows_to_arrays(rows)
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    back = rows_from_arrays(rows_with_a_key(), {"learner.params": np.zeros(1), **arrays})
    assert (
        back.envs.env_state["key"].dtype == rows.envs.env_state["key"].dtype
    )  # a raw key would be drawn from just as well
    assert jax.random.uniform(back.envs.env_state["key"][1]) == jax.random.uniform(rows.envs.env_state["key"][1])
    drop_key = lambda tree: dataclasses.replace(  # noqa: E731
        tree, envs=dataclasses.replace(tree.envs, env_state=tree.envs.env_state["position"])
    )
    for before, after in zip(jax.tree.leaves(drop_key(rows)), jax.tree.leaves(drop_key(back)), strict=True):
        np.testing.assert_array_equal(before, after)
        assert before.dtype == after.dtype


def test_rows_of_another_number_are_refused():
    arrays = rows_to_arrays(rows_with_a_key())
    with pytest.raises(UserError, match="rows"):
        rows_from_arrays(rows_with_a_key(ROWS + 1), arrays)
