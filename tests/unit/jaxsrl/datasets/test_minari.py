"""Datasets in Minari's format: exact round trips, and sets that minari itself recorded."""

import dataclasses
import os

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec
from jaxsrl.datasets.dataset import find_episodes, open_dataset
from jaxsrl.datasets.minari import from_minari, to_minari
from jaxsrl.datasets.writer import DatasetWriter, leaf_arrays
from tests.support.dataset_steps import SPEC, part, random_steps, write


def episodes_of(dataset):
    found = find_episodes(dataset.steps)
    for row, begin, end in zip(found.row, found.begin, found.end, strict=True):
        one = part(dataset.steps, begin, end)
        yield {name: array[:, row] for name, array in leaf_arrays(one).items() if name != "is_first"}


@pytest.fixture
def minari_root(tmp_path, monkeypatch):
    pytest.importorskip("minari", reason="needs the extra minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.usefixtures("minari_root")
def test_round_trip_through_minari_is_exact(tmp_path, monkeypatch, is_relative):
    if is_relative:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MINARI_DATASETS_PATH", "minari")
    ours = write(tmp_path / "ours", random_steps(200), [200], score_random=-1.0, score_expert=3.0)
    count = to_minari(ours, "jaxsrl/test/random-v0")
    from_minari("jaxsrl/test/random-v0", tmp_path / "back")
    back = open_dataset(tmp_path / "back")
    before, after = list(episodes_of(ours)), list(episodes_of(back))
    assert len(before) == len(after) == count > 10
    for old, new in zip(before, after, strict=True):
        assert set(new) == set(old) - {"extras/log_prob"}
        for name, array in new.items():
            np.testing.assert_array_equal(array, old[name], err_msg=name)
            assert array.dtype == old[name].dtype
    assert back.manifest.spec.observation == SPEC.observation
    assert back.manifest.spec.action == SPEC.action
    assert (back.manifest.score_random, back.manifest.score_expert) == (-1.0, 3.0)
    with pytest.raises(UserError, match="already"):
        to_minari(ours, "jaxsrl/test/random-v0")


@pytest.mark.usefixtures("minari_root")
@pytest.mark.parametrize("place", ["create_dataset_from_buffers", "update_metadata"])
def test_interrupted_conversions_create_nothing(tmp_path, monkeypatch, place):
    import minari

    ours = write(tmp_path / "ours", random_steps(50), [50], score_random=-1.0)
    owner = minari if place == "create_dataset_from_buffers" else minari.dataset.minari_storage.MinariStorage
    original = getattr(owner, place)

    def stop_after(*arguments, **options):
        original(*arguments, **options)
        if place != "update_metadata" or "ref_min_score" in arguments[1]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, place, stop_after)
        with pytest.raises(KeyboardInterrupt):
            to_minari(ours, "jaxsrl/test/random-v0")
    assert list(minari.list_local_datasets()) == []
    to_minari(ours, "jaxsrl/test/random-v0")
    assert list(minari.list_local_datasets()) == ["jaxsrl/test/random-v0"]
    assert minari.namespace.list_local_namespaces() == ["jaxsrl", "jaxsrl/test"]
    assert minari.load_dataset("jaxsrl/test/random-v0").storage.metadata["ref_min_score"] == -1.0
    assert sorted(os.listdir(tmp_path / "minari" / "jaxsrl" / "test")) == ["namespace_metadata.json", "random-v0"]
    monkeypatch.setattr(DatasetWriter, "append", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        from_minari("jaxsrl/test/random-v0", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.usefixtures("minari_root")
@pytest.mark.parametrize("dataset_id", ["t/random-v0", "jaxsrl/random", "../random-v0"])
def test_ids_that_minari_cannot_list_are_rejected(tmp_path, dataset_id):
    import minari

    ours = write(tmp_path / "ours", random_steps(50), [50])
    with pytest.raises(UserError, match="expected an id of Minari such as .*--out"):
        to_minari(ours, dataset_id)
    assert list(minari.list_local_datasets()) == []


@pytest.mark.usefixtures("minari_root")
@pytest.mark.filterwarnings("ignore::UserWarning")  # about an author
def test_a_dataset_that_minari_recorded_is_read(tmp_path):
    import minari

    env = minari.DataCollector(gymnasium.make("CartPole-v1"))
    env.action_space.seed(0)
    for episode in range(5):
        env.reset(seed=episode)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    recorded = env.create_dataset("cartpole/random-v0", algorithm_name="random")
    env.close()
    from_minari("cartpole/random-v0", tmp_path / "set")
    dataset = open_dataset(tmp_path / "set")
    found = list(episodes_of(dataset))
    assert len(found) == 5
    for ours, theirs in zip(found, recorded.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(ours["observation"], theirs.observations)
        np.testing.assert_array_equal(ours["action"], theirs.actions)
        np.testing.assert_array_equal(ours["reward"], theirs.rewards)
        np.testing.assert_array_equal(ours["terminated"], theirs.terminations)
    spec = GymnasiumSource(lambda: gymnasium.make("CartPole-v1"), "CartPole-v1").spec()
    assert dataset.manifest.spec.observation == spec.observation
    assert dataset.manifest.env == {"id": "CartPole-v1", "suite": "gymnasium"}
    with pytest.raises(UserError, match="no local Minari dataset 'none/at-all-v0'"):
        from_minari("none/at-all-v0", tmp_path / "none")


class Kinds(gymnasium.Env):
    """Episodes of 3 steps that both terminate and truncate, with integer rewards."""

    observation_space = spaces.MultiDiscrete([9, 2], dtype=np.int32)
    action_space = spaces.MultiBinary(5)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.int32), {}

    def step(self, action):
        self.steps += 1
        return np.array([self.steps, 1], np.int32), self.steps, self.steps == 3, self.steps == 3, {}


@pytest.mark.usefixtures("minari_root")
@pytest.mark.filterwarnings("ignore::UserWarning")  # about an author
def test_a_dataset_of_minari_keeps_ends_dtypes_and_spaces(tmp_path):
    import minari

    env = minari.DataCollector(Kinds())
    for _ in range(2):
        env.reset()
        for _ in range(3):
            env.step(np.array([0, 1, 0, 0, 1], np.int8))
    recorded = env.create_dataset("kinds/random-v0")
    env.close()
    from_minari("kinds/random-v0", tmp_path / "set")
    assert to_minari(open_dataset(tmp_path / "set"), "kinds/back-v0") == 2
    back = minari.load_dataset("kinds/back-v0")
    for old, new in zip(recorded.iterate_episodes(), back.iterate_episodes(), strict=True):
        assert new.terminations.tolist() == new.truncations.tolist() == [False, False, True]
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(new, name), getattr(old, name))
            assert getattr(new, name).dtype == getattr(old, name).dtype
    assert (back.spec.observation_space, back.spec.action_space) == (Kinds.observation_space, Kinds.action_space)


@pytest.mark.usefixtures("minari_root")
@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        (
            {"id": "CartPole-v1", "kwargs": '{"sutton_barto_reward": true}', "suite": "auto"},
            {"sutton_barto_reward": True},
        ),
        ({"id": "CartPole-v1", "kwargs": '{"max_episode_steps": 9}', "suite": "gymnasium"}, {}),
        ({"id": "CartPole-v1", "kwargs": "{}", "suite": "jax"}, None),
    ],
)
def test_arguments_of_the_environment_are_converted(tmp_path, env, kwargs):
    import minari

    to_minari(write(tmp_path / "ours", random_steps(50), [50], env=env), "jaxsrl/test/random-v0")
    env_spec = minari.load_dataset("jaxsrl/test/random-v0").spec.env_spec
    assert kwargs == (None if env_spec is None else env_spec.kwargs)
    assert env_spec is None or env_spec.max_episode_steps == (500 if kwargs else 9)
    from_minari("jaxsrl/test/random-v0", tmp_path / "back")
    assert open_dataset(tmp_path / "back").manifest.env == (None if kwargs is None else {**env, "suite": "gymnasium"})


@pytest.mark.usefixtures("minari_root")
def test_episodes_of_agents_are_not_converted(tmp_path):
    ours = write(tmp_path / "ours", random_steps(50), [50])
    agents = tuple(AgentSpec(name, SPEC.observation, SPEC.action) for name in "abc")
    manifest = dataclasses.replace(ours.manifest, spec=dataclasses.replace(SPEC, agents=agents))
    with pytest.raises(UserError, match="no episodes of several agents: .*ours has 3 of them"):
        to_minari(dataclasses.replace(ours, manifest=manifest), "jaxsrl/test/agents-v0")
