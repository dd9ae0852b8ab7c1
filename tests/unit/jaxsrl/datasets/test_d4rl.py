"""Conversion of D4RL's files: every transition that `qlearning_dataset` would give, and what is rejected."""

import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.datasets.d4rl import from_d4rl
from jaxsrl.datasets.dataset import find_damage, find_episodes, open_dataset

h5py = pytest.importorskip("h5py", reason="needs the extra minari")


def write_file(path, arrays):
    with h5py.File(path, "w") as data:
        for name, array in arrays.items():
            data[name] = array


def file_of(count=100):
    random = np.random.default_rng(0)
    terminals, timeouts = random.random(count) < 0.08, random.random(count) < 0.08
    terminals[-1] = False
    terminals[10:13], timeouts[10:13] = False, True  # episodes of which no transition is known
    return {
        "observations": random.normal(size=(count, 3)),
        "actions": random.uniform(-1, 1, (count, 2)).astype(np.float32),
        "rewards": random.normal(size=count).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts & ~terminals,
    }


def transitions_of(arrays):
    """The loop of D4RL's `qlearning_dataset`, apart from terminal steps, whose next observation does not count."""
    rows = []
    for i in range(len(arrays["rewards"])):
        terminal, last = arrays["terminals"][i], i + 1 == len(arrays["rewards"])
        if (arrays["timeouts"][i] or last) and not terminal:
            continue
        following = np.zeros(3) if terminal else arrays["observations"][i + 1]
        rows.append([*arrays["observations"][i], *arrays["actions"][i], arrays["rewards"][i], *following, terminal])
    return np.array(rows)


def test_transitions_are_those_of_d4rl(tmp_path):
    arrays = file_of()
    write_file(tmp_path / "walk.hdf5", arrays)
    from_d4rl(tmp_path / "walk.hdf5", tmp_path / "set")
    dataset = open_dataset(tmp_path / "set")
    steps, rows = dataset.steps, []
    for step in np.flatnonzero(steps.valid[:, 0]):
        at = (step, 0)
        following = np.zeros(3) if steps.terminated[at] else steps.observation[step + 1, 0]
        rows.append([*steps.observation[at], *steps.action[at], steps.reward[at], *following, steps.terminated[at]])
    expected = transitions_of(arrays)
    assert expected[:, -1].sum() > 2
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    episodes = find_episodes(steps)
    assert episodes.lengths.sum() == len(expected)
    assert dataset.manifest.num_steps == len(expected) + len(episodes.returns)
    assert dataset.manifest.origin == {"d4rl": "walk.hdf5"}
    assert list(find_damage(tmp_path / "set")) == []


@pytest.mark.parametrize("length", [1, 2, 7])
def test_long_episodes_of_files_without_timeouts_are_cut(tmp_path, length):
    arrays = file_of()
    del arrays["timeouts"]
    write_file(tmp_path / "walk.hdf5", arrays)
    with pytest.raises(UserError, match='has no "timeouts".*--max-episode-steps'):
        from_d4rl(tmp_path / "walk.hdf5", tmp_path / "set")
    with pytest.raises(UserError, match="expected at least 1, got 0"):
        from_d4rl(tmp_path / "walk.hdf5", tmp_path / "set", 0)
    from_d4rl(tmp_path / "walk.hdf5", tmp_path / "set", length)
    count, arrays["timeouts"] = 0, np.zeros(100, bool)
    for step in range(100):  # as the loop of D4RL's `qlearning_dataset`
        count += 1
        arrays["timeouts"][step] = count == length and not arrays["terminals"][step]
        count = 0 if count == length or arrays["terminals"][step] else count
    steps, expected = open_dataset(tmp_path / "set").steps, transitions_of(arrays)
    np.testing.assert_allclose(steps.observation[:-1][steps.valid], expected[:, :3], rtol=1e-6)
    np.testing.assert_allclose(steps.reward[steps.valid], expected[:, 5], rtol=1e-6)
    assert find_episodes(steps).lengths.max() <= length


@pytest.mark.parametrize(
    ("changes", "env_id", "problem"),
    [
        (
            {"actions": np.linspace(0, 20, 200).reshape(100, 2)},
            None,
            "expected actions of walk from -1 to 1: got 0 to 20",
        ),
        ({"actions": np.arange(100) % 3}, None, "expected actions of floats, got int64, .* use --env-id"),
        ({"observations": np.zeros((100, 3), np.uint8)}, None, "expected observations of floats, got uint8"),
        ({"observations": np.full((100, 3), np.nan)}, None, "expected observations of walk from -inf to inf: got nan"),
        ({"actions": np.arange(100) % 3}, "CartPole-v1", "expected actions of CartPole-v1 from 0 to 1: got 0 to 2"),
        ({"actions": np.full(100, 0.5)}, "CartPole-v1", "expected actions of CartPole-v1 from 0 to 1: got 0.5 to 0.5"),
        ({"observations": np.zeros((100, 3))}, "CartPole-v1", r"expected observation \(4,\) float32 .*: got .* \(3,\)"),
        ({"actions": np.full((100, 1), -2.1)}, "Pendulum-v1", "expected actions of Pendulum-v1 from -2 to 2: got -2.1"),
    ],
)
def test_values_that_would_not_be_those_declared_are_rejected(tmp_path, changes, env_id, problem):
    observations = np.zeros((100, 4 if env_id == "CartPole-v1" else 3), np.float32)
    write_file(tmp_path / "walk.hdf5", {**file_of(), "observations": observations, **changes})
    env = None if env_id is None else EnvConfig(env_id)
    with pytest.raises(UserError, match=problem):
        from_d4rl(tmp_path / "walk.hdf5", tmp_path / "set", env=env)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("shape", [(100,), (100, 1)])
def test_spaces_are_those_of_the_environment(tmp_path, shape):
    acted = np.arange(100) % 2
    arrays = {**file_of(), "observations": np.zeros((100, 4)), "actions": acted.reshape(shape)}
    arrays["terminals"][:], arrays["timeouts"][:] = np.arange(100) == 49, np.arange(100) % 50 == 49
    write_file(tmp_path / "poles.hdf5", arrays)
    from_d4rl(tmp_path / "poles.hdf5", tmp_path / "set", env=EnvConfig("CartPole-v1"))
    dataset = open_dataset(tmp_path / "set")
    assert dataset.manifest.spec == EnvConfig("CartPole-v1").source().spec()
    assert dataset.manifest.env["id"] == "CartPole-v1"
    steps = dataset.steps
    np.testing.assert_array_equal(steps.action[steps.valid], acted[:99])
    last = steps.terminated | steps.truncated
    assert [steps.terminated[last].tolist(), steps.truncated[last].tolist()] == [[True, False], [True, True]]


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "text.hdf5").write_text("no")
    with pytest.raises(UserError, match="is no HDF5 file"):
        from_d4rl(tmp_path / "text.hdf5", tmp_path / "set")
    arrays = file_of()
    del arrays["terminals"]
    write_file(tmp_path / "part.hdf5", arrays)
    with pytest.raises(UserError, match="expected steps of D4RL, .*: got observations, actions, rewards, timeouts"):
        from_d4rl(tmp_path / "part.hdf5", tmp_path / "set")
