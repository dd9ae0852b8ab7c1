"""An update with replay on the device keeps one copy of the ring, whatever the number of its gradient steps."""

import jax
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from jaxsrl.learner.finite_updates import with_finite_updates
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.replay.on_device import with_device_replay
from tests.support.counting_agent import make_counting
from tests.support.replay_model import Stream


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_the_compiled_update_has_no_room_for_a_second_ring(exponent, devices):
    config = ReplayConfig(
        capacity=400_000, batch_size=8, min_size=20, gradient_steps_per_env_step=0.25, priority_exponent=exponent
    )
    slot = jax.device_get(Stream(rows=4, steps=3, frames=2).slot())
    agent = with_finite_updates(with_device_replay(make_counting(Replay(config, sequence_length=2)), slot))
    mesh = LearnerMesh(jax.local_devices()[:devices])
    state = jax.eval_shape(agent.init, jax.random.key(0))
    ring = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.extra.buffer.storage))
    update = mesh.jit_update(agent, jax.random.key(1))
    placed = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        mesh.state_shardings(state),
    )
    batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.asarray(leaf).dtype, sharding=mesh.rows), slot
    )
    memory = update.lower(placed, batch).compile().memory_analysis()
    assert ring > 5_000_000
    assert memory.alias_size_in_bytes >= ring // devices  # the state is updated in place
    assert memory.temp_size_in_bytes < ring // devices // 4
