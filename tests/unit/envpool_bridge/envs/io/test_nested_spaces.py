"""Property tests over generated spaces: what goes in comes out, and what disagrees is refused by name."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from envpool_bridge.envs.gymnasium_env import GymnasiumRows
from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.envs.protocol import GymnasiumReset, first_rows, step_rows
from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.encoding import restored, store
from envpool_bridge.spec.specs import spec_from_dict, spec_to_dict
from envpool_bridge.spec.tree import items, leaves, lookup, map_leaves, paths, take
from tests.support.generated_spaces import DTYPES, Replays, actions, observations

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def rows_of(envs, observation, action, steps=4):
    spec = spec_of_spaces(observation, action, "e", 1)
    rows = GymnasiumRows(envs, spec, range(len(envs)), None, False, True)
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, len(envs), steps, 1), {}))
    return spec, rows, slot


def play(rows, slot, given):
    rows.reset(GymnasiumReset((None,) * rows.num_rows), first_rows(slot))
    step_rows(slot, slice(0, len(slot.reward))).prepare()
    for t in range(len(slot.reward)):
        if given is not None:
            map_leaves(lambda target, values: target.__setitem__(..., values), take(slot.action, t), take(given, t))
        rows.step(take(slot.action, t), step_rows(slot, t))
    rows.verify(take(slot.observation, slice(1, None)), slot.reward)


def assert_same(one, other):
    """As an environment means them: numbers compared exactly, dtypes too."""
    found, wanted = leaves(one), leaves(other)
    assert paths(one) == paths(other)
    for a, b in zip(found, wanted, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def stored_precision(value):
    """What 32 bits keep of it."""
    wide = np.asarray(value).dtype == np.float64
    return np.asarray(value, np.float32).astype(np.float64) if wide else value


@SLOW
@given(observations, actions, st.integers(0, 1000))
def test_every_observation_and_action_comes_out_as_it_went_in(observation, action, seed):
    envs = [Replays(observation, action, seed=seed + row) for row in range(2)]
    spec, rows, slot = rows_of(envs, observation, action)
    assert spec_from_dict(spec_to_dict(spec)) == spec
    action.seed(seed)
    samples = [[action.sample() for _ in envs] for _ in slot.reward]
    for t, at_step in enumerate(samples):
        for row, sample in enumerate(at_step):
            store(spec.action, sample, map_leaves(lambda array, t=t, row=row: array[t, row : row + 1], slot.action))
    given_actions = map_leaves(np.copy, slot.action)
    play(rows, slot, given_actions)
    for row, env in enumerate(envs):
        for t, shown in enumerate(env.observations):
            stored = map_leaves(lambda array, t=t, row=row: array[t, row], slot.observation)
            assert_same(restored(spec.observation, stored), map_leaves(stored_precision, as_tree(shown)))
        for t, received in enumerate(env.actions):
            assert action.contains(received)
            assert_same(as_tree(received), map_leaves(stored_precision, as_tree(samples[t][row])))


def as_tree(value):
    if isinstance(value, dict):
        return {key: as_tree(item) for key, item in value.items()}
    return tuple(as_tree(item) for item in value) if isinstance(value, tuple) else value


@st.composite
def disagreeing(draw):
    """(declared, shown, path): two spaces that differ in one leaf, or in the structure above it."""
    declared = draw(observations)
    places = [path for path, _ in items(space_tree(declared))]
    path = draw(st.sampled_from(places))
    cut = draw(st.integers(0, len(path)))
    at = path[:cut] if draw(st.booleans()) else path
    original = space_at(declared, at)
    changed = draw(changes(original))
    return declared, replaced(declared, at, changed), at


def space_tree(space):
    if isinstance(space, spaces.Dict):
        return {key: space_tree(child) for key, child in space.spaces.items()}
    return tuple(map(space_tree, space.spaces)) if isinstance(space, spaces.Tuple) else space


def space_at(space, path):
    return space if not path else space_at(space[path[0]], path[1:])


def replaced(space, path, changed):
    if not path:
        return changed
    if isinstance(space, spaces.Dict):
        return spaces.Dict({**space.spaces, path[0]: replaced(space[path[0]], path[1:], changed)})
    children = list(space.spaces)
    children[path[0]] = replaced(children[path[0]], path[1:], changed)
    return spaces.Tuple(children)


def changes(space):
    """Spaces none of whose samples the given one allows."""
    if isinstance(space, spaces.Dict):
        names = sorted(space.spaces)
        more = spaces.Dict({**space.spaces, "further": spaces.Discrete(2)})
        renamed = spaces.Dict({f"{name}x": space[name] for name in names})
        return st.sampled_from([more, renamed, spaces.Tuple([space[name] for name in names])])
    if isinstance(space, spaces.Tuple):
        longer = spaces.Tuple([*space.spaces, spaces.Discrete(2)])
        return st.sampled_from([longer, spaces.Dict({str(k): child for k, child in enumerate(space.spaces)})])
    if isinstance(space, spaces.Discrete):
        beyond = spaces.Discrete(3, start=int(space.start + space.n))
        return st.sampled_from([beyond, spaces.Box(0.0, 1.0, (1,)), spaces.MultiBinary(2)])
    if isinstance(space, spaces.MultiDiscrete):
        beyond = spaces.MultiDiscrete(space.nvec, start=space.start + space.nvec)
        return st.sampled_from([beyond, spaces.MultiDiscrete([2] * (len(space.nvec) + 1)), spaces.Text(3)])
    shape = space.shape
    others = [dtype for dtype in DTYPES if dtype != space.dtype]
    wrong_dtypes = [spaces.Box(0, 1, shape, dtype) for dtype in others]
    return st.sampled_from([spaces.Box(0, 1, (*shape, 2), space.dtype), spaces.Discrete(3), *wrong_dtypes])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(disagreeing(), st.integers(0, 100))
def test_undeclared_space_is_rejected_with_its_leaf(pair, seed):
    declared, shown, path = pair
    env = Replays(declared, spaces.Discrete(2), shown, seed)
    _, rows, slot = rows_of([env], declared, env.action_space, steps=1)
    with pytest.raises(BadEnvOutputError) as refused:
        play(rows, slot, None)
    named = str(refused.value).split("bad ", 1)[1].split(": expected")[0]
    assert named == "observation" + "".join(f"[{key!r}]" for key in path)


@SLOW
@given(observations, st.integers(0, 100))
def test_value_out_of_range_is_rejected_with_its_leaf(observation, seed):
    tree = space_tree(observation)
    bounded = [(path, leaf) for path, leaf in items(tree) if isinstance(leaf, spaces.Box) and leaf.is_bounded()]
    bounded = [
        (path, leaf) for path, leaf in bounded if leaf.dtype.kind == "f" or leaf.high.max() < np.iinfo(leaf.dtype).max
    ]
    assume(bounded)
    path, leaf = bounded[seed % len(bounded)]
    env = Replays(observation, spaces.Discrete(2), seed=seed)
    sample = env._sample

    def beyond():
        shown = sample()
        lookup(as_tree(shown), path)[...] = leaf.high + 1
        return shown

    env._sample = beyond
    _, rows, slot = rows_of([env], observation, env.action_space)
    with pytest.raises(BadEnvOutputError) as refused:
        play(rows, slot, None)
    shown_path = "observation" + "".join(f"[{key!r}]" for key in path)
    assert f"bad {shown_path}: expected at most" in str(refused.value)
