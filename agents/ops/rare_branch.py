"""A branch of an update that is rare and expensive, which several runs of one program take together."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array


def run_if(due: Array, branch: Callable[..., Any], before: Any, *inputs: Any) -> Any:
    """Returns `branch(before, *inputs)` where `due`, else `before`.

    `vmap` turns a `lax.cond` into a choice between both results, and so runs the branch at every call. Here a batch runs it only
    where any of its members is due, and those that are not keep `before`.

    Args:
        due: bool scalar.
        branch: Returns the structure, shapes and types of `before`. It must not close over arrays that `vmap` may batch.
        before: Pytree of arrays.
        inputs: Further pytrees of arrays that the branch reads.
    """

    @jax.custom_batching.custom_vmap
    def run(due: Array, before: Any, inputs: Any) -> Any:
        return jax.lax.cond(due, lambda: branch(before, *inputs), lambda: before)

    def chosen(due: Array, before: Any, inputs: Any) -> Any:
        return jax.tree.map(partial(jnp.where, due), branch(before, *inputs), before)

    @run.def_vmap
    def run_batch(size: int, is_batched: Any, *arguments: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(is_batched))
        batch = partial(jax.vmap, in_axes=axes, axis_size=size)
        after = jax.lax.cond(
            jnp.any(arguments[0]), batch(chosen), batch(lambda due, before, inputs: before), *arguments
        )
        return after, jax.tree.map(lambda _: True, after)

    return run(due, before, inputs)
