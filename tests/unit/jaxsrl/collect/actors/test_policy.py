"""The policy in an actor: its set-up, what it acts with, what it writes and counts."""

import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Agent, OnPolicy
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.packed_arrays import params_layout
from envpool_bridge.shm.slots import SlotAccess, view_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.collect.actors.counters import ActorCounters
from jaxsrl.collect.actors.factory import ActorFactory, set_up_jax
from jaxsrl.collect.actors.policy import ActorParams, ActorPolicy, start_jax
from jaxsrl.collect.inference.act import make_act, row_keys
from jaxsrl.collect.params.shared_memory import SharedParams

SPEC = EnvSpec("e", ArraySpec((2,), "float32"), DiscreteSpec(1000))
SHAPE = PoolShape(num_workers=2, lanes_per_worker=2, workers_per_lane=1, rows_per_part=3, rollout_length=4, num_slots=2)
EXTRAS = {"score": ArraySpec((), "float32")}
PARTS = {2: range(106, 109), 3: range(109, 112)}


def act(params, observation, agent_state, is_first, keys, mode):
    """A random action; the score tells parameters, observation and how often the row acted since its episode began."""
    count = jnp.where(is_first, 0, agent_state) + 1
    action = jax.vmap(lambda key: jax.random.randint(key, (), 0, 1000))(keys)
    return action, {"score": params["scale"] * observation.sum(-1) + count}, count


AGENT = Agent("a", None, lambda rows: jnp.zeros(rows, jnp.int32), act, None, EXTRAS, OnPolicy())


class Actor:
    """An ActorPolicy of worker 1 over memory of this process."""

    def __init__(self, lag: int) -> None:
        self.layout = make_layout(SPEC, SHAPE, EXTRAS)
        self.memory = np.zeros(self.layout.total_bytes, np.uint8)
        self.slots = view_slots(self.layout, self.memory.data)
        self.access = SlotAccess(self.layout)
        self.shared = SharedParams(params_layout([((), "float32")]))
        self.counters = ActorCounters(2)
        self.key = jax.random.key(5)
        params = ActorParams(self.shared, jax.tree.structure({"scale": 0}), lag)
        self.policy = ActorPolicy(AGENT, params, self.key, PARTS, SHAPE.rollout_length, self.counters, 1)

    def publish(self, version: int) -> None:
        self.shared.publish(version, [np.float32(version * 10)])

    def act(self, part: int, step: int) -> bool:
        sequence, t = divmod(step, SHAPE.rollout_length)
        rows = self.access.act_rows(self.slots[sequence % SHAPE.num_slots], t, SHAPE.part_rows(part))
        return self.policy.act(part, step, rows)

    def close(self) -> None:
        self.shared.close()
        self.counters.close()


@pytest.fixture(params=[0])
def actor(request):
    made = Actor(request.param)
    yield made
    made.close()


def test_actions_are_those_of_the_rows_ids_and_steps_of_the_run(actor):
    actor.publish(0)
    for part, ids in PARTS.items():
        for step in (0, 1):
            assert actor.act(part, step)
            expected, _, _ = make_act(AGENT)(
                {"scale": np.float32(0)},
                np.zeros((3, 2), np.float32),
                jnp.zeros(3, jnp.int32),
                np.zeros(3, bool),
                row_keys(actor.key, ids),
                np.full(3, step, np.uint32),
            )
            np.testing.assert_array_equal(actor.slots[0].action[step, SHAPE.part_rows(part)], expected)


def test_steps_of_the_run_wrap_around_at_32_bits(actor):
    for step in (2**32 - 1, 2**32 + 1):
        actor.publish(step // SHAPE.rollout_length)
        assert actor.act(2, step)
        keys = jax.vmap(jax.random.fold_in)(row_keys(actor.key, PARTS[2]), np.full(3, step % 2**32, np.uint32))
        expected = jax.vmap(lambda key: jax.random.randint(key, (), 0, 1000))(keys)
        slot = actor.slots[step // SHAPE.rollout_length % SHAPE.num_slots]
        np.testing.assert_array_equal(slot.action[step % SHAPE.rollout_length, SHAPE.part_rows(2)], expected)


def test_only_the_parts_own_columns_of_the_step_are_written(actor):
    actor.publish(0)
    before = pickle.loads(pickle.dumps(actor.slots[0]))
    actor.act(3, 1)
    changed = actor.slots[0].extras["score"] != before.extras["score"]
    assert changed[1, SHAPE.part_rows(3)].all()
    assert changed.sum() == 3


def test_actor_carries_state_per_part_and_sees_episode_starts(actor):
    actor.publish(0)
    actor.slots[0].is_first[0] = True
    actor.slots[0].is_first[2, SHAPE.part_rows(2)] = [True, False, False]
    for step in range(3):
        actor.act(2, step)
    actor.act(3, 0)
    scores = actor.slots[0].extras["score"]
    np.testing.assert_array_equal(scores[:3, SHAPE.part_rows(2)], [[1, 1, 1], [2, 2, 2], [1, 3, 3]])
    np.testing.assert_array_equal(scores[0, SHAPE.part_rows(3)], [1, 1, 1])


@pytest.mark.parametrize("actor", [1], indirect=True)
def test_actor_parts_in_two_slots_use_their_own_versions(actor):
    actor.slots[0].observation[...] = actor.slots[1].observation[...] = 0.5
    actor.publish(0)
    assert actor.policy.may_act(1)
    assert not actor.policy.may_act(2)
    assert actor.act(2, 4)
    assert not actor.act(3, 8)
    assert not actor.slots[0].policy_version.any()
    actor.publish(1)
    assert actor.act(3, 8)
    assert actor.act(2, 5)
    rows = SHAPE.part_rows(2), SHAPE.part_rows(3)
    np.testing.assert_array_equal(actor.slots[0].policy_version[0, rows[1]], [1, 1, 1])
    np.testing.assert_array_equal(actor.slots[0].extras["score"][0, rows[1]], [11, 11, 11])
    np.testing.assert_array_equal(actor.slots[1].policy_version[:2, rows[0]], np.zeros((2, 3)))
    np.testing.assert_array_equal(actor.slots[1].extras["score"][1, rows[0]], [2, 2, 2])


@pytest.mark.parametrize("actor", [3], indirect=True)
def test_actor_uses_newer_version_from_lag_2(actor):
    for version in range(4):
        actor.publish(version)
        actor.act(2, version)
    np.testing.assert_array_equal(actor.slots[0].policy_version[:, SHAPE.part_rows(2)][:, 0], [0, 1, 2, 3])


def test_actor_counts_calls_and_rows_in_shared_memory(actor):
    reader = ActorCounters(2, os.dup(actor.counters.descriptor))
    assert not actor.act(2, 0)
    assert reader.totals().calls == 0
    actor.publish(0)
    actor.act(2, 0)
    actor.act(3, 0)
    actor.counters.count(0, 5, 0.5)
    totals = reader.totals()
    assert (totals.calls, totals.rows) == (3, 11)
    assert 0.5 < totals.busy_seconds < 30.0
    reader.close()


def test_warming_up_changes_nothing_that_acting_depends_on(actor):
    actor.policy.warm_up({"scale": jnp.float32(0)}, SPEC)
    actor.publish(0)
    actor.act(2, 0)
    np.testing.assert_array_equal(actor.slots[0].extras["score"][0, SHAPE.part_rows(2)], [1, 1, 1])
    assert actor.counters.totals().calls == 1


def test_actor_jax_has_one_cpu_device():
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4 --xla_cpu_enable_fast_math=false",
        "JAX_PLATFORMS": "cuda",
    }
    set_up_jax(environment)
    assert environment["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false --xla_cpu_multi_thread_eigen=false"
    assert environment["JAX_PLATFORMS"] == "cpu"


def test_starting_jax_leaves_the_actor_its_cores():
    before = os.sched_getaffinity(0)
    start_jax(7)
    assert os.sched_getaffinity(0) == before


def test_what_an_actor_loads_first_imports_no_jax():
    import subprocess
    import sys

    factory = ActorFactory(b"", 0, np.zeros(2, np.uint32), "fry", None, {})
    code = f"import pickle, sys; pickle.loads({pickle.dumps(factory)!r}); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
