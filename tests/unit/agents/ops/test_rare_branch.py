"""A rare branch: a single run takes it when due, a batch of runs together, and none where no run is due."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.rare_branch import run_if

CALLS: list[int] = []


def branch(before, factor, key):
    """Counts its runs, and multiplies."""
    jax.debug.callback(lambda _: CALLS.append(1), factor)
    return {"x": before["x"] * factor + 0.0 * jax.random.uniform(key), "n": before["n"] + 1}


def run(due, x, factor, key):
    return run_if(due, branch, {"x": x, "n": jnp.int32(0)}, factor, key)


def runs() -> int:
    jax.effects_barrier()
    count = len(CALLS)
    CALLS.clear()
    return count


@pytest.mark.parametrize("due", [False, True])
def test_a_single_run_takes_the_branch_where_it_is_due(due):
    after = jax.jit(run)(jnp.array(due), jnp.float32(3.0), jnp.float32(2.0), jax.random.key(0))
    assert (float(after["x"]), int(after["n"])) == ((6.0, 1) if due else (3.0, 0))
    assert runs() == due


@pytest.mark.parametrize("due", [(False, False), (True, False), (True, True)])
def test_a_batch_runs_the_branch_only_where_a_member_is_due(due):
    x, keys = np.array([3.0, 5.0], np.float32), jax.random.split(jax.random.key(0), 2)
    after = jax.jit(jax.vmap(run, in_axes=(0, 0, None, 0)))(jnp.array(due), x, jnp.float32(2.0), keys)
    np.testing.assert_array_equal(after["x"], np.where(due, 2 * x, x))
    np.testing.assert_array_equal(after["n"], due)
    assert (runs() > 0) == any(due)
