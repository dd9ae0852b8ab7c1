"""The memory of PPG's phases counts trajectories of the newest cycle alone."""

import jax.numpy as jnp
import numpy as np

from agents.ops.phase_memory import init_phase_memory, store_trajectory
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

PHASES, STEPS, ROWS = 3, 2, 4
SPEC = EnvSpec("test", ArraySpec((1,), "float32"), DiscreteSpec(2))


def stored(updates):
    """Returns the memory after these updates; the others were skipped."""
    memory = init_phase_memory(SPEC, PHASES, STEPS, ROWS, ())
    for number in updates:
        full = jnp.full((STEPS, ROWS), number, jnp.float32)
        memory = store_trajectory(memory, full[..., None], full, jnp.ones((STEPS, ROWS), bool), jnp.int32(number))
    return memory


def test_trajectories_of_skipped_updates_leave_their_place_empty():
    for skipped in (3, 4):
        memory = stored([number for number in range(6) if number != skipped])
        expected = np.repeat(np.arange(3, 6) != skipped, STEPS)
        np.testing.assert_array_equal(memory.valid, np.broadcast_to(expected[:, None], memory.valid.shape))


def test_trajectories_of_another_run_do_not_count():
    memory = stored([12, 13, 14, 0, 2])  # a warm start begins to count anew
    np.testing.assert_array_equal(memory.valid[:, 0], np.repeat([True, False, True], STEPS))


def test_trajectories_of_a_whole_cycle_count():
    memory = stored(range(6))
    assert memory.valid.all()
    np.testing.assert_array_equal(memory.target_value[::STEPS, 0], [3, 4, 5])
