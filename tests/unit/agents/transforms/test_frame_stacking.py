"""Frames are stored once; what agents see is, to the byte, what Gymnasium's FrameStackObservation shows."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.api import Agent, LearnerState, OnPolicy, Replay, ReplayAgent, ReplayConfig, Sample, Trajectory
from agents.transforms.frame_stacking import stack_frames, with_stacked_frames
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import SlotAccess, allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.mesh import LearnerMesh

ROWS = 3


class Film(gymnasium.Env):
    """Frames that differ everywhere; episodes of 1 to 9 steps. `index` gives every frame its own number."""

    observation_space = spaces.Dict(
        {"index": spaces.Box(0, 2**30, (1,), np.int32), "picture": spaces.Box(0, 255, (2, 2), np.uint8)}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 10))
        return self.frame(), {}

    def frame(self):
        return {
            "index": self.np_random.integers(0, 2**30, 1).astype(np.int32),
            "picture": self.np_random.integers(0, 256, (2, 2)).astype(np.uint8),
        }

    def step(self, action):
        self.left -= 1
        return self.frame(), 1.0, self.left == 0, False, {}


def watching_agent():
    """Shows what it is given: `act` as extras, `update` as metrics."""

    def act(params, observation, agent_state, is_first, keys, mode):
        return jnp.zeros(len(is_first), jnp.int32), {"seen": observation, "is_first": is_first}, agent_state

    def update(state, batch, key):
        return state, {"seen": batch.observation, "is_first": batch.is_first}

    return Agent("watching", None, lambda rows: (), act, update, {}, OnPolicy())


def played(count, length, slots, steps_done=0, reset=None):
    """Every slot of a run in turn, with what `act` saw at each step."""
    source = GymnasiumSource(Film, frame_stack=count)
    spec = source.spec()
    layout = make_layout(spec, PoolShape(1, 1, 1, ROWS, length, 2), {})
    views, access = allocate_slots(layout), SlotAccess(layout)
    agent = with_stacked_frames(watching_agent(), spec)
    rows = source.make_rows(range(ROWS), 7, False)
    first = first_rows(views[0])
    rows.reset(reset or EpisodeReset((0,) * ROWS, (None,) * ROWS), first)
    first.begin_history()
    seen = []
    for number in range(slots):
        slot = views[number % 2]
        if number:
            access.carry(views[(number - 1) % 2], slot, slice(None))
        step_rows(slot, slice(0, length)).prepare()
        for t in range(length):
            acting = access.act_rows(slot, t, slice(None))
            acting.action[...] = 0
            _, extras, _ = agent.act(None, acting.observation, (), acting.is_first, None, None)
            seen.append(extras)
            rows.step(acting.action, step_rows(slot, t))
        trajectory = LearnerMesh(jax.devices()[:1]).place_batch([slot])
        _, learnt = agent.update(LearnerState(None, None, None), trajectory, None)
        yield slot, seen[-length:], jax.device_get(learnt)


def expected(count, steps):
    """[steps + 1] observations of each row, from Gymnasium itself."""
    source = GymnasiumSource(lambda: FrameStackObservation(Film(), count))
    rows = source.make_rows(range(ROWS), 7, False)
    spec = source.spec()
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, ROWS, steps, 1), {}))
    rows.reset(EpisodeReset((0,) * ROWS, (None,) * ROWS), first_rows(slot))
    step_rows(slot, slice(0, steps)).prepare()
    for t in range(steps):
        slot.action[t] = 0
        rows.step(slot.action[t], step_rows(slot, t))
    return slot


@pytest.mark.parametrize(("count", "length"), [(2, 5), (4, 5), (4, 1), (3, 2), (6, 4)])
def test_agents_see_the_stacks_of_gymnasiums_wrapper(count, length):
    slots = 30
    reference = expected(count, slots * length)
    assert reference.terminated.sum() > 5
    for number, (slot, seen, learnt) in enumerate(played(count, length, slots)):
        begin = number * length
        for name in ("index", "picture"):
            wanted = reference.observation[name][begin : begin + length + 1]
            np.testing.assert_array_equal(learnt["seen"][name], wanted)
            for t, extras in enumerate(seen):
                np.testing.assert_array_equal(extras["seen"][name], wanted[t])
        np.testing.assert_array_equal(learnt["is_first"], reference.is_first[begin : begin + length + 1])
        np.testing.assert_array_equal(seen[0]["is_first"], reference.is_first[begin])
        assert slot.frames["picture"].shape == (count + length, ROWS, 2, 2)


def test_replayed_row_keeps_its_frames():
    count, length = 4, 5
    whole = list(played(count, length, 3))
    reference = expected(count, 3 * length)
    resets = np.argwhere(~reference.valid[: 2 * length])
    begins = [max([step + 1 for step, row in resets if row == r], default=0) for r in range(ROWS)]
    episodes = tuple(int((resets[:, 1] == row).sum()) for row in range(ROWS))
    actions = tuple(np.zeros(2 * length - begin, np.int32) for begin in begins)
    assert any(begin < 2 * length for begin in begins)
    (again,) = played(count, length, 1, reset=EpisodeReset(episodes, actions))
    for name in ("index", "picture"):
        np.testing.assert_array_equal(again[2]["seen"][name], whole[2][2]["seen"][name])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(0, 2), st.integers(1, 7))
def test_stack_frames_matches_loop(seed, count, more_history, steps):
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 1000, (count - 1 + steps, ROWS, 2))
    history = more_history + count - 1
    is_first = np.concatenate([np.zeros((history, ROWS), bool), rng.random((steps, ROWS)) < 0.4])
    found = stack_frames(jnp.asarray(frames), jnp.asarray(is_first), count)
    for t in range(steps):
        for row in range(ROWS):
            age, layers = 0, []
            for _ in range(count):
                layers.append(frames[count - 1 + t - age, row])
                age += not is_first[history + t - age, row]
            np.testing.assert_array_equal(found[t, row], layers[::-1])


def test_an_agent_without_stacked_frames_is_left_as_it_is():
    agent = watching_agent()
    assert with_stacked_frames(agent, GymnasiumSource(Film).spec()) is agent


@pytest.mark.parametrize("num_transforms", [0, 1, 2])
def test_transforms_of_samples_and_updates_see_stacks(num_transforms):
    count, length = 3, 4
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (count + length, ROWS, 2)).astype(np.uint8)
    is_first = np.concatenate([np.zeros((count - 1, ROWS), bool), rng.random((length + 1, ROWS)) < 0.4])
    steps = np.zeros((length, ROWS))
    sample = Sample(Trajectory(frames, is_first, steps, steps, steps, steps, steps, steps, {}), steps[0], ROWS)
    seen = []

    def transform(params, extra, sample, key):
        seen.append(sample.trajectory)
        return sample

    def update(state, sample, key):
        seen.append(sample.trajectory)
        return state, {}, steps[0]

    replay = Replay(ReplayConfig(), length, transforms=(transform,) * num_transforms)
    spec = EnvSpec("test", ArraySpec((count, 2), "uint8", frames=count), DiscreteSpec(2))
    agent = with_stacked_frames(ReplayAgent("watching", None, None, None, update, {}, replay), spec)
    for step in agent.data.transforms:
        sample = step((), (), sample, None)
    agent.update((), sample, None)
    assert len(seen) == num_transforms + 1
    for trajectory in seen:
        np.testing.assert_array_equal(trajectory.observation, stack_frames(frames, is_first, count))
        np.testing.assert_array_equal(trajectory.is_first, is_first[-length - 1 :])


def test_stacking_over_several_devices_moves_no_frame():
    mesh = LearnerMesh(jax.devices()[:2])
    frames, is_first = jnp.zeros((7, 4, 8), jnp.uint8), jnp.zeros((7, 4), bool)
    compiled = jax.jit(lambda f, i: stack_frames(f, i, 4), in_shardings=(mesh.rows, mesh.rows)).lower(frames, is_first)
    assert "gather" not in compiled.compile().as_text()
