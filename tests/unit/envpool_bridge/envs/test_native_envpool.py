"""Environments of the EnvPool package: seeds, spaces and arguments as the rest of the bridge has them."""

import json
import subprocess
import sys

import numpy as np
import pytest

from envpool_bridge.envs import egl
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, StepRows
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import zeros_of

pytest.importorskip("envpool")


def source_of(env_id, **kwargs):
    return EnvConfig(env_id, suite="envpool", kwargs=json.dumps({"num_threads": 1, **kwargs})).source()


def first_observations(source, request, num_rows=3):
    rows = source.make_rows(range(num_rows), 5, False)
    out = FirstRows(zeros_of(source.spec().observation, (num_rows,)), np.zeros(num_rows, bool))
    rows.reset(request, out)
    rows.close()
    return out.observation


def test_a_rows_first_episode_follows_from_its_own_seed_alone():
    source = source_of("CartPole-v1")
    one = first_observations(source, EpisodeReset((0, 0, 4), (None,) * 3))
    np.testing.assert_array_equal(first_observations(source, EpisodeReset((0, 0, 4), (None,) * 3)), one)
    other = first_observations(source, EpisodeReset((1, 0, 4), (None,) * 3))
    np.testing.assert_array_equal((one == other).all(1), [False, True, True])
    seeded = first_observations(source, GymnasiumReset((3, 4, 5)))
    np.testing.assert_array_equal(first_observations(source, GymnasiumReset((5, 3, 4)))[1:], seeded[:2])


def test_without_a_seed_every_reset_differs():
    source = source_of("CartPole-v1")
    request = GymnasiumReset((None,) * 3)
    assert (first_observations(source, request) != first_observations(source, request)).all()


def test_cart_pole_moves_as_gymnasiums_does():
    gymnasium_one = EnvConfig("CartPole-v1").source().make_env()
    gymnasium_one.reset()
    source = source_of("CartPole-v1")
    rows, flags = source.make_rows(range(1), 5, False), [np.zeros(1, bool) for _ in range(4)]
    out = StepRows(np.zeros((1, 4), np.float32), flags[0], np.zeros(1, np.float32), *flags[1:])
    rows.reset(GymnasiumReset((1,)), FirstRows(out.observation, out.is_first))
    gymnasium_one.unwrapped.state = out.observation[0].astype(np.float64)
    for action in (0, 1, 1, 0, 1, 0, 0):
        rows.step(np.array([action], np.int32), out)
        observation, reward, terminated, _, _ = gymnasium_one.step(action)
        np.testing.assert_allclose(out.observation[0], observation, rtol=1e-4, atol=1e-6)
        assert (out.reward[0], bool(out.terminated[0])) == (reward, terminated)
    rows.close()


def test_native_envpool_restores_infinite_bounds():
    spec = source_of("CheetahRun-v1").spec()
    position = spec.observation["position"]
    # It says low = 2.2e-308, C++'s smallest positive number, where it means none.
    assert (position.low, position.high, position.dtype, position.source_dtype) == (None, None, "float32", "float64")
    assert (spec.action.low, spec.action.high) == (-1.0, 1.0)


def test_native_envpool_stacks_and_counts_frames():
    stacked, native = source_of("Pong-v5", frame_stack=3), source_of("Pong-v5")
    assert stacked.spec().observation.stored_shape == (84, 84)
    assert native.spec().observation.stored_shape == (4, 84, 84)
    assert native.spec().action_repeat == stacked.spec().action_repeat == 4
    assert source_of("HalfCheetah-v4").spec().action_repeat == 1  # its frame_skip counts steps of the physics


def test_pixels_are_stacked_as_channels(monkeypatch):
    monkeypatch.setattr(egl, "MISSING", "")  # nothing is drawn
    pixels = {"from_pixels": True, "render_width": 64, "render_height": 48}
    one, two = (source_of("WalkerWalk-v1", **pixels, frame_stack=frames).spec().observation for frames in (1, 2))
    assert (one.stored_shape, two.stored_shape, two.frames, two.dtype) == ((3, 48, 64), (6, 48, 64), 1, "uint8")


def test_pixels_without_the_library_that_draws_are_rejected(monkeypatch):
    monkeypatch.setattr(egl, "MISSING", "libEGL.so.1: cannot open shared object file")
    with pytest.raises(
        UserError, match=r"from_pixels of suite 'envpool' needs EGL: libEGL.so.1: cannot open .* libegl1"
    ):
        source_of("WalkerWalk-v1", from_pixels=True)
    assert source_of("WalkerWalk-v1").spec().env_id == "WalkerWalk-v1"


def test_pixels_are_drawn_without_a_display():
    try:
        import mujoco.egl

        mujoco.egl.GLContext(16, 16).free()
    except (ImportError, AttributeError, RuntimeError) as error:
        pytest.skip(f"this machine cannot draw: {error}")
    program = (
        "import sys\n"
        "from envpool_bridge.envs.config import EnvConfig\n"
        'kwargs = \'{"num_threads": 1, "from_pixels": true, "render_width": 64, "render_height": 48}\'\n'
        "vector = EnvConfig('CartpoleSwingup-v1', 'envpool', kwargs=kwargs).source().make_vector_env(1)\n"
        "observation, _ = vector.reset(seed=[1])\n"
        "assert observation.shape == (1, 3, 48, 64) and observation.std() > 10, observation.std()\n"
        "names = list(sys.modules)  # in this order a fork server imports them for later workers\n"
        "assert names.index('envpool_bridge.envs.egl') < names.index('envpool')\n"
    )
    # In another process: this one has imported EnvPool before.
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("CartPole-v1", {"from_pixels": True}, "only supported for MuJoCo"),
        ("CartPol-v1", {}, "unknown id 'CartPol-v1' of suite 'envpool'; did you mean CartPole-v1"),
        ("CartPole-v1", {"seed": 1}, "seed cannot be set: they follow from the number of rows and their seeds"),
        ("CartPole-v1", {"batch_size": 1, "num_envs": 2}, "batch_size, num_envs cannot be set"),
        ("CartPole-v1", {"colour": 1}, "bad kwargs .*colour"),
        ("Pong-v5", {"frame_stack": 0}, "frame_stack must be at least 1"),
    ],
)
def test_native_envpool_rejects_unknown_arguments(env_id, kwargs, message, monkeypatch):
    monkeypatch.setattr(egl, "MISSING", "")  # nothing is drawn
    with pytest.raises(UserError, match=message):
        source_of(env_id, **kwargs)


def test_native_envpool_rejects_reset_options():
    rows = source_of("CartPole-v1").make_rows(range(1), None, False)
    out = FirstRows(np.zeros((1, 4), np.float32), np.zeros(1, bool))
    with pytest.raises(Exception, match="EnvPool takes no reset options"):
        rows.reset(GymnasiumReset((1,), {"reset_mask": [True]}), out)
    rows.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "CartpoleSwingup-v1"])
def test_repeated_actions_equal_a_plain_loop(env_id):
    repeat, num_rows, steps = 3, 3, 25
    kwargs = json.dumps({"num_threads": 1, "max_episode_steps": 20})
    source = EnvConfig(env_id, "envpool", kwargs=kwargs, action_repeat=repeat).source()
    assert source.spec().action_repeat == repeat
    vector, rng = source.make_vector_env(num_rows), np.random.default_rng(1)
    found, _ = vector.reset(seed=[4, 5, 6])
    singles = [source_of(env_id, max_episode_steps=20).make_vector_env(1) for _ in range(num_rows)]
    seen = [single.reset(seed=[seed])[0] for seed, single in zip((4, 5, 6), singles, strict=True)]
    compare(found, seen)
    ended, counts = [False] * num_rows, set()
    for _ in range(steps):
        actions = np.stack([vector.single_action_space.sample() for _ in range(num_rows)])
        if env_id == "CartPole-v1":
            actions = rng.integers(0, 2, num_rows).astype(np.int32)
        found = vector.step(actions)
        for row, single in enumerate(singles):
            total, is_reset = 0.0, ended[row]
            for count in range(1, 2 if is_reset else repeat + 1):
                seen[row], reward, terminated, truncated, _ = single.step(actions[row : row + 1])
                total += reward[0]
                ended[row] = bool(terminated[0] or truncated[0])
                if ended[row]:
                    counts.add(count)
                    break
            np.testing.assert_allclose(found[1][row], total, rtol=1e-6)
            assert (found[2][row], found[3][row]) == (terminated[0], truncated[0])
        compare(found[0], seen)
    assert min(counts) < repeat, "no episode ended within a repetition"


def compare(found, seen):
    for name, leaf in found.items() if isinstance(found, dict) else [((), found)]:
        np.testing.assert_array_equal(leaf, np.concatenate([one[name] if name else one for one in seen]))
