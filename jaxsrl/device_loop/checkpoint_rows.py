"""Conversion between rows on the device and checkpoint arrays. Rows are saved completely, so a resume replays nothing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Agent
from jaxsrl.checkpoints.names import ROWS
from jaxsrl.checkpoints.store import Arrays, flatten, leaf_forms, unflatten
from jaxsrl.device_loop.collect import DeviceRows, init_rows
from jaxsrl.device_loop.program import RunKeys
from jaxsrl.envs.protocol import JaxEnv


def rows_to_arrays(rows: DeviceRows) -> Arrays:
    """Returns all leaves by name, "rows..."; fetches them from the device."""
    return flatten(jax.device_get(jax.tree.map(_key_data, rows)), ROWS)


def rows_from_arrays(like: DeviceRows, arrays: Arrays) -> DeviceRows:
    """Returns the rows that `rows_to_arrays` saved, as host arrays.

    Args:
        like: any rows of the same environment, agent and number; their values are ignored.
        arrays: arrays of a checkpoint; others than rows are ignored.

    Raises:
        UserError: If the arrays are of another environment or agent, or of another number of rows.
    """
    template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.tree.map(_key_data, like))
    return jax.tree.map(_wrapped_like, like, unflatten(template, arrays, ROWS))


def rows_fit(arrays: Arrays, env: JaxEnv, agent: Agent, keys: RunKeys) -> bool:
    """Returns whether a checkpoint's arrays hold rows of this environment and agent; computes nothing."""
    initial = jax.eval_shape(lambda row_keys: jax.tree.map(_key_data, init_rows(env, agent, row_keys)), keys.rows)
    stored = {name: (x.shape, x.dtype) for name, x in arrays.items() if name.startswith(ROWS)}
    return stored == leaf_forms(initial, ROWS)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    # An environment's state may contain a typed key, which has no numpy form.
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _wrapped_like(like: Any, data: np.ndarray) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like)) if _is_key(like) else data
