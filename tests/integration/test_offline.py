"""Training from datasets: without environments, and beside them."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec
from jaxsrl.datasets.dataset import find_damage, find_episodes, open_dataset
from jaxsrl.datasets.manifest import leaf_file
from jaxsrl.datasets.writer import DatasetWriter
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.record import RecordConfig, record
from jaxsrl.experiment import Experiment
from jaxsrl.replay.fixed import FixedReplayClient
from jaxsrl.replay.host.buffer import HostBuffer
from jaxsrl.training.dataset_replay import open_for_agent
from jaxsrl.training.train import TrainingLoop
from tests.support.compilations import compilations
from tests.support.run_configs import run_config

CARTPOLE = EnvConfig("CartPole-v1")
NETWORK = NetworkConfig(hidden_sizes=(16,))
DQN = DQNConfig(
    replay=ReplayConfig(batch_size=8, min_size=32, capacity=512),
    target_update_period=2,
    epsilon_start=0.1,
    epsilon_end=0.1,
)
STEPS, GRADIENTS = 40, 5


def same(one, other, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), jax.device_get(one), jax.device_get(other))


def dqn_of(source):
    return make_dqn(DQN, source.spec(), NETWORK)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Dataset of random actions."""
    source = make_env(CARTPOLE)
    agent = dqn_of(source)
    config = RecordConfig(env_steps=600, epsilon=1.0, max_rows=4)
    params = agent.init(jax.random.key(0)).params
    return record(agent, params, source, tmp_path_factory.mktemp("data") / "set", config, {"id": "CartPole-v1"})


def experiment(directory, dataset, agent=DQN, env=CARTPOLE, **options):
    settings = {
        "name": "run",
        "directory": str(directory),
        "plan": "offline",
        "dataset_path": str(dataset.path),
        "gradient_steps": STEPS,
        "dataset_gradient_steps_per_update": GRADIENTS,
        "num_envs": 4,
        "rollout_length": 8,
        "eval_final_episodes": 0,
        **options,
    }
    return Experiment(env, agent, NETWORK, run_config(**settings))


def test_recorded_episodes_are_whole_and_reproducible(recorded, tmp_path):
    episodes = find_episodes(recorded.steps)
    assert episodes.lengths.sum() == recorded.num_valid_steps >= 600
    assert len(recorded.steps.reward) == recorded.num_valid_steps + len(episodes.returns)
    np.testing.assert_array_equal(episodes.returns, episodes.lengths)  # CartPole's reward is 1
    assert list(find_damage(recorded.path)) == []
    actions = recorded.steps.action[np.asarray(recorded.steps.valid)]
    assert 0.4 < actions.mean() < 0.6
    source = make_env(CARTPOLE)
    agent = dqn_of(source)
    config = RecordConfig(env_steps=600, epsilon=1.0, max_rows=4)
    again = record(agent, agent.init(jax.random.key(0)).params, source, tmp_path / "again", config)
    np.testing.assert_array_equal(again.steps.observation, recorded.steps.observation)


def test_recorded_steps_are_those_of_the_environment(recorded):
    """Replays an episode's actions in CartPole from its first observation."""
    import gymnasium

    steps, episodes = recorded.steps, find_episodes(recorded.steps)
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    for row, begin, end in zip(episodes.row[:5], episodes.begin[:5], episodes.end[:5], strict=True):
        env.state = np.array(steps.observation[begin, row], np.float64)
        env.steps_beyond_terminated = None
        for t in range(begin, end):
            observation, _, terminated, _, _ = env.step(int(steps.action[t, row]))
            np.testing.assert_allclose(observation, steps.observation[t + 1, row], rtol=1e-4, atol=1e-5)
            assert terminated == steps.terminated[t, row]


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_datasets_of_another_environment_are_named(recorded, tmp_path):
    experiment(tmp_path, recorded, env=EnvConfig("CartPole-v0"), name="other").train(quiet=True)
    experiment(tmp_path, recorded, name="same").train(quiet=True)
    line = (
        f"warning: dataset {recorded.path} is of CartPole-v1: its rewards may be those of another task than CartPole-v0"
    )
    assert line in (tmp_path / "other" / "log.txt").read_text()
    assert "warning" not in (tmp_path / "same" / "log.txt").read_text()


def test_a_number_of_episodes_does_not_prefer_short_ones(tmp_path):
    source = make_env(CARTPOLE)
    agent = dqn_of(source)
    params = agent.init(jax.random.key(0)).params
    some = record(agent, params, source, tmp_path / "some", RecordConfig(episodes=10, epsilon=1.0, max_rows=4))
    assert len(find_episodes(some.steps).returns) == 10
    with pytest.raises(UserError, match="a number of episodes or of env steps"):
        RecordConfig()
    with pytest.raises(UserError, match="epsilon is a probability"):
        RecordConfig(episodes=1, epsilon=2.0)


def test_offline_training_is_a_loop_over_samples(recorded, tmp_path):
    report = experiment(tmp_path, recorded).train(quiet=True)
    assert (report.num_updates, report.env_steps) == (STEPS // GRADIENTS, STEPS)
    source = make_env(CARTPOLE)
    agent = make_dqn(dataclasses.replace(DQN, total_updates=STEPS // GRADIENTS), source.spec(), NETWORK)
    init_key, _, update_key = jax.random.split(jax.random.key(0), 3)
    state = agent.init(init_key)
    count = recorded.manifest.num_steps
    steps = dataclasses.replace(jax.tree.map(np.asarray, recorded.steps), extras={})
    length = agent.data.sequence_length
    update = jax.jit(agent.update)
    for number in range(STEPS):
        key = jax.random.fold_in(update_key, np.int32(number // GRADIENTS))
        draw_key, learn_key = jax.random.split(jax.random.fold_in(key, np.int32(number % GRADIENTS)), 2)
        if number % GRADIENTS == 0:
            state = dataclasses.replace(state, num_updates=state.num_updates + 1)
        sample = sample_by_hand(steps, count, length, np.asarray(jax.random.key_data(draw_key)))
        state, _, _ = update(state, sample, learn_key)
        if number % GRADIENTS == GRADIENTS - 1 and agent.data.sync_acting_params:
            state = agent.data.sync_acting_params(state)
    same(report.state.params, jax.device_get(state.params), rtol=1e-5, atol=1e-6)


def sample_by_hand(steps, count, length, words):
    """Gathers windows with Python slices, at the places that the sampler draws."""
    from agents.api import Sample
    from jaxsrl.replay.device.philox import HostRandom
    from jaxsrl.replay.fixed import OTHER_STREAM

    windows = count - length + 1
    words = np.concatenate([words[:-1], words[-1:] ^ OTHER_STREAM])
    begins = HostRandom().bounded(words, DQN.replay.batch_size, np.array(windows, np.uint64)).astype(int)

    def gather(leaf, more=0):
        return np.stack([leaf[begin : begin + length + more, 0] for begin in begins], axis=1)

    flags = {
        name: gather(getattr(steps, name))
        for name in ("action", "reward", "terminated", "truncated", "valid", "policy_version")
    }
    trajectory = dataclasses.replace(
        steps, observation=gather(steps.observation, 1), is_first=gather(steps.is_first, 1), **flags
    )
    state = dqn_of(make_env(CARTPOLE)).initial_agent_state(DQN.replay.batch_size)
    trajectory = dataclasses.replace(trajectory, agent_state=jax.device_get(state))
    probability = np.full(DQN.replay.batch_size, 1.0 / windows, np.float32)
    return Sample(trajectory, probability, np.int32(windows))


def test_offline_runs_resume_bit_for_bit(recorded, tmp_path):
    whole = experiment(tmp_path / "whole", recorded).train(quiet=True)
    for steps in (15, STEPS):
        resumed = experiment(tmp_path / "parts", recorded, gradient_steps=steps).train(quiet=True)
    same(resumed.state, whole.state, rtol=0, atol=0)


def test_versions_are_evaluated_while_training(recorded, tmp_path):
    options = {"eval_every": 20, "eval_episodes": 2}
    report = experiment(tmp_path, recorded, **options).train(quiet=True)
    lines = (report.directory / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == [20, 40]


def test_frames_are_stacked_from_single_ones(tmp_path):
    env = dataclasses.replace(CARTPOLE, frame_stack=3)
    source = make_env(env)
    agent = dqn_of(source)
    config = RecordConfig(env_steps=300, epsilon=0.5, max_rows=4)
    dataset = record(agent, agent.init(jax.random.key(0)).params, source, tmp_path / "set", config)
    assert dataset.steps.observation.shape[2:] == (4,)
    report = experiment(tmp_path, dataset, env=env).train(quiet=True)
    assert report.num_updates == STEPS // GRADIENTS


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_a_share_of_each_sample_is_from_the_dataset(recorded, tmp_path, monkeypatch, exponent):
    samples = []
    sample = HostBuffer.sample

    def noted(self, words):
        taken = sample(self, words)
        samples.append((self.num_steps, taken[0].trajectory.reward.shape[1]))
        return taken

    monkeypatch.setattr(HostBuffer, "sample", noted)
    replay = dataclasses.replace(DQN.replay, priority_exponent=exponent)
    options = {
        "plan": "serial",
        "replay_memory": "host",
        "dataset_share": 0.25,
        "total_env_steps": 320,
        "gradient_steps": None,
    }
    beta = {"importance_sampling_end": DQN.importance_sampling_exponent} if exponent else {}
    agent = dataclasses.replace(DQN, replay=replay, **beta)
    report = experiment(tmp_path, recorded, agent, **options).train(quiet=True)
    assert report.env_steps == 320
    sizes = {count for _, count in samples}
    assert sizes == {2, 6}
    fixed = [size for size, count in samples if count == 2]
    assert set(fixed) == {len(recorded.steps.reward)}
    expected = (320 - replay.min_size) * replay.gradient_steps_per_env_step
    assert len(fixed) == len(samples) / 2 == expected
    whole = report.state
    for steps in (96, 320):
        resumed = experiment(tmp_path / "parts", recorded, agent, **{**options, "total_env_steps": steps}).train(
            quiet=True
        )
    same(resumed.state, whole, rtol=0, atol=0)


def test_versions_of_the_recording_run_are_not_those_of_this_run(recorded, tmp_path, monkeypatch):
    """An agent that asks for the age of a window would take a dataset's windows for new ones, if not for later than now."""
    versions = []
    sample = FixedReplayClient.sample

    def noted(self):
        taken = sample(self)
        versions.append(np.asarray(taken.trajectory.policy_version))
        return taken

    monkeypatch.setattr(FixedReplayClient, "sample", noted)
    steps = dataclasses.replace(recorded.steps, policy_version=np.full_like(recorded.steps.policy_version, 5000))
    path = with_manifest(dataclasses.replace(recorded, steps=steps), tmp_path / "set")
    for name, changes in (
        ("offline", {}),
        ("serial", {"replay_memory": "host", "total_env_steps": 96, "gradient_steps": None}),
    ):
        dataset = open_dataset(path)
        assert (np.asarray(dataset.steps.policy_version) == 5000).all()
        experiment(tmp_path / name, dataset, **{"plan": name, **changes}).train(quiet=True)
        assert versions
        assert not np.any(versions)
        versions.clear()


@pytest.mark.slow
def test_a_run_with_a_dataset_and_late_priorities_resumes(recorded, tmp_path):
    replay = dataclasses.replace(DQN.replay, priority_exponent=0.6, priority_delay=2)
    agent = dataclasses.replace(DQN, replay=replay, importance_sampling_end=DQN.importance_sampling_exponent)
    options = {"plan": "serial", "replay_memory": "host", "dataset_share": 0.25, "gradient_steps": None}
    whole = experiment(tmp_path / "whole", recorded, agent, **options, total_env_steps=160).train(quiet=True)
    for steps in (96, 160):
        resumed = experiment(tmp_path / "parts", recorded, agent, **options, total_env_steps=steps).train(quiet=True)
    same(resumed.state, whole.state, rtol=0, atol=0)


def with_manifest(dataset, path, **changes):
    """Writes the steps of a dataset with another manifest."""
    with DatasetWriter(path, dataclasses.replace(dataset.manifest, **changes)) as writer:
        writer.append(dataset.steps)
    return path


def test_actions_of_other_bounds_are_rejected(recorded, tmp_path):
    source = make_env(CARTPOLE)
    agent, spec = dqn_of(source), source.spec()
    action = ArraySpec((), "int32", -1.0, 1.0)
    path = with_manifest(recorded, tmp_path / "set", spec=dataclasses.replace(recorded.manifest.spec, action=action))
    for low, high in ((-1.0, 1.0), (-1, 1)):
        same_bounds = dataclasses.replace(spec, action=dataclasses.replace(action, low=low, high=high))
        assert open_for_agent(path, agent, same_bounds).manifest.spec.action == action
    for low, high in ((-1.0, 2.0), (-1.0, None), (-2.0, 1.0)):
        other = dataclasses.replace(spec, action=dataclasses.replace(action, low=low, high=high))
        with pytest.raises(UserError, match=f"expected action between {low} and {high} .*got -1.0 to 1.0"):
            open_for_agent(path, agent, other)


def test_values_of_another_form_are_rejected(recorded, tmp_path):
    source = make_env(CARTPOLE)
    agent, spec = dqn_of(source)._replace(extras={"reward": ArraySpec((), "float32")}), source.spec()
    steps = dataclasses.replace(
        recorded, steps=dataclasses.replace(recorded.steps, extras={"reward": recorded.steps.reward})
    )
    path = with_manifest(steps, tmp_path / "set", extras=agent.extras)
    open_for_agent(path, agent, spec)
    other = agent._replace(extras={"reward": ArraySpec((2,), "float32")})
    with pytest.raises(UserError, match=r"learns from reward .*expected float32 \(2,\), got float32 \(\)"):
        open_for_agent(path, other, spec)


def test_what_does_not_fit_is_rejected_before_anything_starts(recorded, tmp_path):
    with pytest.raises(UserError, match="plan offline learns from a dataset: use --dataset.path"):
        experiment(tmp_path, recorded, dataset_path="").train(quiet=True)
    with pytest.raises(UserError, match="run.target_return 5: plan offline .* use --eval.every"):
        experiment(tmp_path, recorded, target_return=5.0).train(quiet=True)
    with pytest.raises(UserError, match="learns from what its own policy collects"):
        experiment(tmp_path, recorded, agent=PPOConfig()).train(quiet=True)
    with pytest.raises(UserError, match="expected the observation of Acrobot-v1"):
        experiment(tmp_path, recorded, env=EnvConfig("Acrobot-v1")).train(quiet=True)
    priorities = dataclasses.replace(DQN.replay, priority_exponent=0.6)
    with pytest.raises(
        UserError, match="samples a dataset uniformly: expected agent.replay.priority_exponent 0, got 0.6"
    ):
        experiment(tmp_path, recorded, agent=dataclasses.replace(DQN, replay=priorities)).train(quiet=True)
    with pytest.raises(UserError, match="--replay.memory host"):
        experiment(tmp_path, recorded, plan="serial").train(quiet=True)
    with pytest.raises(UserError, match="expected the directory of a dataset"):
        experiment(tmp_path, recorded, dataset_path=str(tmp_path / "none")).train(quiet=True)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert (recorded.path / leaf_file("reward")).exists()


def test_nothing_compiles_after_the_first_update(recorded, tmp_path, monkeypatch):
    compiled: list[int] = []
    original = TrainingLoop.after_update

    def after_update(self, learner):
        original(self, learner)
        compiled.append(len(programs))

    monkeypatch.setattr(TrainingLoop, "after_update", after_update)
    with compilations() as programs:
        experiment(tmp_path, recorded, checkpoint_interval_updates=2).train(quiet=True)
    assert len(compiled) == STEPS // GRADIENTS
    assert compiled[0] > 0
    assert programs[compiled[0] :] == []


def test_steps_that_are_not_finite_change_nothing(recorded, tmp_path):
    steps = jax.tree.map(np.array, recorded.steps)
    steps = dataclasses.replace(steps, reward=np.full_like(steps.reward, np.nan))
    with DatasetWriter(tmp_path / "set", recorded.manifest) as writer:
        writer.append(steps)
    run = experiment(tmp_path, open_dataset(tmp_path / "set"), learner_max_nonfinite_updates=0)
    agent, _, _ = run.build()
    report = run.train(quiet=True)
    expected = agent.init(jax.random.split(jax.random.key(0), 3)[0])
    same(report.state.params["network"], expected.params["network"], rtol=1e-6)
    newest = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert newest["learner/nonfinite_update"] == 1.0
    assert newest["learner/nonfinite_updates_total"] == STEPS // GRADIENTS
