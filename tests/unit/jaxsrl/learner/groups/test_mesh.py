"""Policies on meshes of their own compute what one program for all of them does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Agent, LearnerState, OnPolicy, Trajectory
from agents.transforms.frame_stacking import with_stacked_frames
from agents.transforms.multi_policy import PolicyGroup, make_grouped, policy_spec, policy_state
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from envpool_bridge.spec.tree import leaves
from jaxsrl.learner.finite_updates import SKIPPED, with_finite_updates
from jaxsrl.learner.groups.mesh import GroupMeshes, take_agent_rows
from tests.support.scripted_agents import Scripted

SPEC = ParallelSource(Scripted).spec()  # a, b, c observe 3, 4, 5 numbers and choose among 2, 3, 4 values
ENVS, STEPS = 4, 6
RUN_KEY = jax.random.key(7)


def least_squares(spec):
    """A small agent that uses all that an update is given: momentum, a statistic, extras, memory, the key and the number."""
    size = int(np.prod(spec.observation.shape))

    def init(key):
        return LearnerState(jax.random.normal(key, (size,)), jnp.zeros(size), jnp.int32(0), {"seen": jnp.float32(0)})

    def update(state, batch, key):
        inputs = batch.observation[:-1].reshape(*batch.reward.shape, size)
        wanted = batch.reward + batch.action + batch.extras["noise"] + batch.agent_state["memory"]

        def loss(params):
            return jnp.sum(batch.valid * (inputs @ params - wanted) ** 2) / batch.valid.sum()

        value, grads = jax.value_and_grad(loss)(state.params)
        momentum = 0.9 * state.opt_state + grads + 0.1 * jax.random.normal(key, (size,))
        params = state.params - 1e-2 * momentum / (1 + state.num_updates)
        seen = {"seen": state.extra["seen"] + batch.valid.sum()}
        return LearnerState(params, momentum, state.num_updates + 1, seen), {"loss": value}

    def unused(*arguments):
        raise NotImplementedError

    def remembered(num_rows):
        return {"memory": jnp.zeros(num_rows)}

    return Agent("ls", init, remembered, unused, update, {"noise": ArraySpec((), "float32")}, OnPolicy())


def grouped(spec, frozen=()):
    groups = []
    for place, agent in enumerate(spec.agents):
        own = policy_spec(spec, [place])
        groups.append(PolicyGroup(agent.name, (place,), own, least_squares(own), frozen=agent.name in frozen))
    return make_grouped(spec, groups)


def random_slots(spec, pools=1, seed=0):
    """Slots whose every number is drawn; whole environments in each."""
    rng = np.random.default_rng(seed)
    rows = ENVS * spec.rows_per_env // pools
    memory = tuple({"memory": ArraySpec((), "float32")} for _ in spec.agents)
    extras = {f"{agent.name}/noise": ArraySpec((), "float32") for agent in spec.agents}
    layout = make_layout(spec, PoolShape(1, 1, 1, rows, STEPS, 1), extras, memory)
    slots = [allocate_slots(layout)[0] for _ in range(pools)]
    for slot in slots:
        for array in (*leaves(slot.frames), slot.reward, *slot.extras.values(), *leaves(slot.agent_state)):
            array[...] = rng.normal(size=array.shape)
        slot.action[...] = rng.integers(0, 2, slot.action.shape)
        slot.valid[...] = rng.random(slot.valid.shape) < 0.8
        slot.is_first_frames[...] = rng.random(slot.is_first_frames.shape) < 0.2
    return slots


def trajectory(slots):
    def joined(name):
        return jax.tree.map(lambda *arrays: np.concatenate(arrays, 1), *[getattr(slot, name) for slot in slots])

    names = ("action", "reward", "terminated", "truncated", "valid", "policy_version", "extras")
    return Trajectory(
        observation=joined("frames"),
        is_first=joined("is_first_frames"),
        agent_state=jax.tree.map(lambda array: array[0], joined("agent_state")),
        **{name: joined(name) for name in names},
    )


def in_one_program(agent, state, batches):
    update = jax.jit(agent.update)
    metrics = {}
    for batch in batches:
        state, metrics = update(state, batch, jax.random.fold_in(RUN_KEY, state.num_updates))
    return jax.device_get((state, metrics))


def side_by_side(agent, groups, devices, state, slots_of_updates):
    guarded = with_finite_updates(agent._replace(groups=groups))
    meshes = GroupMeshes(guarded.groups, devices)
    update = meshes.jit_update(guarded, RUN_KEY)
    state, metrics = meshes.place_state(state), {}
    for slots in slots_of_updates:
        state, metrics = update(state, meshes.place_batch(slots))
    assert [float(value) for name, value in metrics.items() if name.endswith(SKIPPED)] == [0.0] * len(groups)
    return state, {name: value for name, value in metrics.items() if not name.endswith(SKIPPED)}


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("places", "pools", "frozen"),
    [
        ({"a": [0], "b": [1], "c": [2]}, 1, ()),
        ({"a": [3], "b": [1], "c": [0, 2]}, 2, ()),
        ({"a": [0, 1], "c": [2, 3]}, 1, ("b",)),
    ],
)
def test_updates_side_by_side_are_those_of_one_program(places, pools, frozen):
    agent = grouped(SPEC, frozen)
    devices = {name: [jax.devices()[index] for index in indices] for name, indices in places.items()}
    slots = [random_slots(SPEC, pools, seed) for seed in range(3)]
    first = jax.device_get(agent.init(jax.random.key(1)))
    state, metrics = side_by_side(agent, agent.groups, devices, first, slots)
    assert_same((state, metrics), in_one_program(agent, first, [trajectory(each) for each in slots]))
    assert int(state.num_updates) == 3
    for name, own in devices.items():
        for leaf in jax.tree.leaves((state.params[name], state.opt_state[name], state.extra[name])):
            assert leaf.devices() == set(own)
        assert metrics[f"{name}/loss"].devices() == set(own)


def test_each_policys_devices_get_its_own_rows_and_no_others():
    agent = with_finite_updates(grouped(SPEC, ("b",)))
    meshes = GroupMeshes(agent.groups, {"a": jax.devices()[:1], "c": jax.devices()[2:4]})
    slots = random_slots(SPEC, pools=2)
    whole, batches = trajectory(slots), meshes.place_batch(slots)
    assert sorted(batches) == ["a", "c"]
    for name, place in (("a", 0), ("c", 2)):
        rows = [env * 3 + place for env in range(ENVS)]
        np.testing.assert_array_equal(batches[name].observation, whole.observation[:, rows])
        np.testing.assert_array_equal(batches[name].reward, whole.reward[:, rows])
        noise = f"{name}/noise"
        np.testing.assert_array_equal(batches[name].extras[noise], whole.extras[noise][:, rows])
        np.testing.assert_array_equal(
            batches[name].agent_state[place]["memory"], whole.agent_state[place]["memory"][rows]
        )
    assert batches["c"].reward.sharding.shard_shape(batches["c"].reward.shape) == (STEPS, ENVS // 2)


def test_rows_that_were_cut_out_do_not_change_with_the_slot():
    slot = random_slots(SPEC)[0]
    own = take_agent_rows(slot, (2, 0), 3)
    order = [env * 3 + place for env in range(ENVS) for place in (2, 0)]
    expected = slot.reward[:, order].copy()
    slot.reward[...] = -1
    np.testing.assert_array_equal(own.reward, expected)
    assert not any(np.shares_memory(mine, slot.is_first_frames) for mine in (own.is_first, own.is_first_frames))


def test_copied_params_are_on_one_device_and_outlive_an_update():
    agent = with_finite_updates(grouped(SPEC, ("b",)))
    meshes = GroupMeshes(agent.groups, {"a": jax.devices()[1:2], "c": jax.devices()[2:4]})
    update = meshes.jit_update(agent, RUN_KEY)
    state = meshes.place_state(jax.device_get(agent.init(jax.random.key(1))))
    before = jax.device_get(state.params)
    published = meshes.copy_params(state.params)
    assert published["a"].unsafe_buffer_pointer() != state.params["a"].unsafe_buffer_pointer()
    after, _ = update(state, meshes.place_batch(random_slots(SPEC)))
    jax.block_until_ready(after)
    assert sorted(published) == ["a", "b", "c"]
    for name, part in published.items():
        assert part.devices() == {jax.devices()[1]}
        np.testing.assert_array_equal(part, before[name])
    np.testing.assert_array_equal(after.params["b"], before["b"])


def test_stacked_frames_are_stacked_on_each_policys_own_devices():
    box = ArraySpec((3, 2), "float32", frames=3)
    spec = EnvSpec(
        "stacked", box, DiscreteSpec(2), agents=tuple(AgentSpec(name, box, DiscreteSpec(2)) for name in ("x", "y"))
    )
    agent = with_stacked_frames(grouped(spec), spec)
    slots = random_slots(spec)
    devices = {"x": jax.devices()[:1], "y": jax.devices()[1:2]}
    first = jax.device_get(agent.init(jax.random.key(1)))
    found = side_by_side(agent, agent.groups, devices, first, [slots])
    assert_same(found, in_one_program(agent, first, [trajectory(slots)]))


def test_a_part_of_the_state_is_that_of_its_policy():
    state = grouped(SPEC).init(jax.random.key(1))
    part = policy_state(state, "b")
    assert part.params is state.params["b"]
    assert part.opt_state is state.opt_state["b"]
    assert part.extra is state.extra["b"]
    assert part.num_updates is state.num_updates
