"""Conversion of D4RL's files: every transition that `qlearning_dataset` would give, and what is rejected."""

import numpy as np
import pytest

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


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "text.hdf5").write_text("no")
    with pytest.raises(UserError, match="is no HDF5 file"):
        from_d4rl(tmp_path / "text.hdf5", tmp_path / "set")
    arrays = file_of()
    del arrays["terminals"]
    write_file(tmp_path / "part.hdf5", arrays)
    with pytest.raises(UserError, match="expected steps of D4RL, .*: got observations, actions, rewards, timeouts"):
        from_d4rl(tmp_path / "part.hdf5", tmp_path / "set")
