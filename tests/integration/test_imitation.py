"""GAIL, DAgger and teachers of whole runs: datasets, labels of a run, resume, loading, and what is rejected."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig
from agents.dqn import DQNConfig
from agents.networks.config import NetworkConfig
from agents.offline.bc import BCConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.datasets.dataset import open_dataset
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.evaluation.record import RecordConfig, record
from jaxsrl.experiment import Experiment
from jaxsrl.population.imitation import ImitationConfig, load_demonstrations
from jaxsrl.training.callbacks import Callback
from tests.support.run_configs import run_config

CARTPOLE = EnvConfig("CartPole-v1")
NETWORK = NetworkConfig(hidden_sizes=(8,))


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    experiment = Experiment(CARTPOLE, PPOConfig(num_epochs=1, num_minibatches=1), NETWORK, run_config(num_envs=4))
    agent, source, _ = experiment.build()
    path = tmp_path_factory.mktemp("data") / "set"
    record(agent, agent.init(jax.random.key(0)).params, source, path, RecordConfig(episodes=4))
    return str(path)


def experiment(directory, demonstrations, updates=4, plan="serial", agent=None, env=CARTPOLE, **options):
    settings = {
        "num_envs": 8,
        "rollout_length": 8,
        "total_env_steps": 64 * updates,
        "eval_final_episodes": 0,
        "name": "run",
    }
    run = run_config(directory=str(directory), plan=plan, **settings, **options)
    agent = agent or PPOConfig(num_epochs=1, num_minibatches=1)
    imitation = ImitationConfig(demonstrations=demonstrations, batch_size=16)
    return Experiment(env, agent, NETWORK, run, imitation=imitation)


def same(one, other, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), jax.device_get(one), jax.device_get(other))


def test_an_imitator_resumes_exactly_and_acts_when_loaded(tmp_path, demonstrations):
    whole = experiment(tmp_path / "whole", demonstrations).train(quiet=True)
    for updates in (2, 4):
        resumed = experiment(tmp_path / "parts", demonstrations, updates).train(quiet=True)
    same(resumed.state, whole.state, rtol=0, atol=0)
    loaded = load_agent(tmp_path / "whole" / "run")
    same(loaded.params, whole.state.params, rtol=0, atol=0)
    report = evaluate(loaded.agent, loaded.params, loaded.source, episodes=2)
    assert all(0 < value <= 500 for value in report.returns)
    plain = dataclasses.replace(experiment(tmp_path / "plain", demonstrations), imitation=ImitationConfig())
    other = plain.train(quiet=True).state.params
    assert not np.allclose(jax.tree.leaves(other)[-1], jax.tree.leaves(whole.state.params)[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        ("single_learner_fine", {"pool_num_workers": 2, "max_policy_lag": 0}),
        ("multiple_learners", {"learner_num_devices": 2, "pool_num_workers": 2, "max_policy_lag": 0}),
    ],
)
def test_every_plan_gives_the_same_imitator(tmp_path, demonstrations, plan, changes):
    serial = experiment(tmp_path / "serial", demonstrations).train(quiet=True)
    other = experiment(tmp_path / plan, demonstrations, plan=plan, **changes).train(quiet=True)
    same(other.state.params, serial.state.params, rtol=1e-3, atol=1e-5)


def test_airl_gets_what_follows_each_step(demonstrations):
    dataset = open_dataset(Path(demonstrations))
    steps = load_demonstrations(Path(demonstrations), dataset.manifest.spec, with_next=True)
    at = np.argwhere(np.asarray(dataset.steps.valid))
    for number, (step, row) in enumerate(at):
        np.testing.assert_array_equal(steps.next_observation[number], dataset.steps.observation[step + 1, row])
        assert steps.terminated[number] == dataset.steps.terminated[step, row]
    assert len(at) == len(steps.next_observation) == len(steps.terminated)
    assert load_demonstrations(Path(demonstrations), dataset.manifest.spec).next_observation == ()


@pytest.mark.parametrize("with_next", [False, True])
def test_too_many_demonstrations_are_not_copied(monkeypatch, with_next):
    """The observations would need 256 TiB."""
    spec = EnvSpec("Huge-v1", ArraySpec((2**40,), "float32"), DiscreteSpec(2))
    observation = np.broadcast_to(np.float32(0.0), (5, 16, 2**40))
    flags = np.ones((4, 16), bool)
    steps = SimpleNamespace(observation=observation, action=flags.astype(np.int32), valid=flags, terminated=flags)
    opened = SimpleNamespace(manifest=SimpleNamespace(spec=spec), steps=steps)
    monkeypatch.setattr("jaxsrl.population.imitation.open_dataset", lambda path: opened)
    size = 2**28 * (1 + with_next)
    with pytest.raises(UserError, match=f"expected at most 64 MiB, got {size}; jaxsrl dataset merge"):
        load_demonstrations(Path("set"), spec, with_next)


def test_what_cannot_be_imitated_is_rejected(tmp_path, demonstrations):
    dqn = DQNConfig(epsilon_start=0.1, epsilon_end=0.1)
    for changes, message in (
        ({"agent": dqn}, "one policy that learns from trajectories"),
        ({"env": EnvConfig("Acrobot-v1")}, "another observation or action than Acrobot-v1"),
        ({"demonstrations": str(tmp_path)}, "expected the directory of a dataset"),
    ):
        with pytest.raises(UserError, match=message):
            experiment(tmp_path / "runs", **{"demonstrations": demonstrations, **changes}).build()
    central = experiment(tmp_path, demonstrations, plan="central", learner_num_devices=2)
    with pytest.raises(UserError, match="gradient"):
        central.train(quiet=True)


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    """A run whose policy is none that is learned by chance."""
    run = experiment(tmp_path_factory.mktemp("expert"), "", updates=2)
    return str(dataclasses.replace(run, imitation=ImitationConfig()).train(quiet=True).directory)


class StopAt(Callback):
    """Stops a run after an update."""

    def __init__(self, update):
        self.update = update

    def on_update(self, run):
        if run.num_updates == self.update:
            run.stop("enough")


def student(directory, expert, updates=4, agent=None, plan="serial", **options):
    replay = ReplayConfig(capacity=10_000, batch_size=16, min_size=32, gradient_steps_per_env_step=0.125)
    run = experiment(directory, "", updates, plan, agent or BCConfig(replay), **options)
    return dataclasses.replace(run, imitation=ImitationConfig(expert=expert))


def test_dagger_records_labels_resumes_and_loads(tmp_path, expert):
    whole = student(tmp_path / "whole", expert, record=str(tmp_path / "set")).train(quiet=True)
    steps = open_dataset(tmp_path / "set").steps
    loaded = load_agent(Path(expert))
    valid = np.asarray(steps.valid)
    observation = np.asarray(steps.observation[:-1])[valid]
    keys = jax.random.split(jax.random.key(0), len(observation))
    label = loaded.agent.act(loaded.params, observation, (), np.zeros(len(keys), bool), keys, Mode.GREEDY)[0]
    np.testing.assert_array_equal(np.asarray(steps.extras["expert_action"])[valid], label)
    acts = np.asarray(steps.action)[valid]
    assert (
        0.5 < np.mean(acts == label) < 1.0
    )  # the expert acts half of the time, and a half of the other actions is the same
    for _ in range(2):  # the first one stops in the middle
        resumed = student(tmp_path / "parts", expert).train(quiet=True, callbacks=[StopAt(2)])
    same(resumed.state, whole.state, rtol=0, atol=0)
    loaded = load_agent(tmp_path / "whole" / "run")
    same(loaded.params, whole.state.params, rtol=0, atol=0)
    report = evaluate(loaded.agent, loaded.params, loaded.source, episodes=2)
    assert all(0 < value <= 500 for value in report.returns)


def test_what_an_expert_cannot_label_is_rejected(tmp_path, expert):
    dqn = DQNConfig(epsilon_start=0.1, epsilon_end=0.1)
    for changes, message in (
        ({"agent": dqn}, "expected agent bc"),
        ({"expert": str(tmp_path / "none")}, "no checkpoint"),
        ({"env": EnvConfig("Acrobot-v1")}, "imitation.expert: .* expected float32"),
    ):
        with pytest.raises(UserError, match=f"(?s){message}"):
            student(tmp_path / "runs", **{"expert": expert, **changes}).build()
    with pytest.raises(UserError, match="got both"):
        ImitationConfig(demonstrations="set", expert=expert)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    directory = tmp_path_factory.mktemp("teacher")
    experiment(directory, "").train(quiet=True)
    return str(directory / "run")


def taught(directory, teacher, updates=4, plan="serial", **options):
    imitation = ImitationConfig(teacher=teacher, teacher_coef=2.0, teacher_env_steps=3 * 64)
    return dataclasses.replace(experiment(directory, "", updates, plan, **options), imitation=imitation)


def test_a_student_resumes_exactly_and_acts_without_teacher(tmp_path, teacher):
    whole = taught(tmp_path / "whole", teacher).train(quiet=True)
    for updates in (2, 4):
        resumed = taught(tmp_path / "parts", teacher, updates).train(quiet=True)
    same(resumed.state, whole.state, rtol=0, atol=0)
    path = tmp_path / "whole" / "run"
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["imitation/teacher_coef"] == 0.0  # of the fourth update
    config = json.loads((path / "config.json").read_text())
    assert config["experiment"]["imitation"]["teacher"] == teacher
    same(load_agent(path).params, whole.state.params, rtol=0, atol=0)
    alone = experiment(tmp_path / "alone", "").train(quiet=True).state.params
    assert not np.allclose(jax.tree.leaves(alone["actor"])[-1], jax.tree.leaves(whole.state.params["actor"])[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        ("single_learner_fine", {"pool_num_workers": 2, "max_policy_lag": 0}),
        ("multiple_learners", {"learner_num_devices": 2, "pool_num_workers": 2, "max_policy_lag": 0}),
        ("central", {"learner_num_replicas": 2, "pool_num_workers": 2, "max_policy_lag": 0}),
    ],
)
def test_every_plan_gives_the_same_student(tmp_path, teacher, plan, changes):
    serial = taught(tmp_path / "serial", teacher).train(quiet=True)
    other = taught(tmp_path / plan, teacher, plan=plan, **changes).train(quiet=True)
    same(other.state.params, serial.state.params, rtol=1e-3, atol=1e-5)


def test_teachers_that_cannot_teach_are_rejected(tmp_path, teacher, demonstrations):
    for path, changes, message in (
        (str(tmp_path / "none"), {}, "imitation.teacher: expected a run of PPO, A2C or IMPALA"),
        (teacher, {"env": EnvConfig("Acrobot-v1")}, "imitation.teacher: expected a run of PPO"),
        (teacher, {"agent": DQNConfig(epsilon_start=0.1, epsilon_end=0.1)}, "got dqn"),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(taught(tmp_path / "runs", path), **changes).build()
    with pytest.raises(UserError, match="expected imitation.teacher without"):
        ImitationConfig(teacher=teacher, demonstrations=demonstrations)


def test_teacher_and_student_squash_alike(tmp_path):
    pendulum = {"env": EnvConfig("Pendulum-v1"), "run": run_config(name="run", directory=str(tmp_path), **SMALLEST)}
    agent = PPOConfig(num_minibatches=1, num_epochs=1)
    plain = Experiment(agent=agent, network=NetworkConfig(hidden_sizes=(4,)), **pendulum)
    path = str(plain.train(quiet=True).directory)
    student = dataclasses.replace(plain, network=NetworkConfig(hidden_sizes=(4,), squash=True))
    with pytest.raises(UserError, match="network.squash is False, that of the student True: use the same"):
        dataclasses.replace(student, imitation=ImitationConfig(teacher=path)).build()


SMALLEST = {"num_envs": 2, "rollout_length": 4, "total_env_steps": 8, "plan": "serial", "eval_final_episodes": 0}


@pytest.mark.slow
def test_a_student_needs_fewer_env_steps_than_alone(tmp_path):
    def learn(name, updates, **imitation):
        env = EnvConfig("CartPole-v1", suite="jax")
        config = PPOConfig(learning_rate=1e-3, num_epochs=4, num_minibatches=4, gae_lambda=0.9)
        run = run_config(
            directory=str(tmp_path),
            name=name,
            plan="device_only",
            num_envs=32,
            rollout_length=32,
            total_env_steps=1024 * updates,
            eval_final_episodes=100,
        )
        network = NetworkConfig(hidden_sizes=(64, 64), activation="tanh")
        report = Experiment(env, config, network, run, imitation=ImitationConfig(**imitation)).train(quiet=True)
        assert report.evaluation is not None
        return report.evaluation.mean_return

    of_teacher = learn("teacher", 200)
    alone = learn("alone", 10)
    student = learn("student", 10, teacher=str(tmp_path / "teacher"), teacher_coef=2.0)
    assert of_teacher > 450.0
    assert student > 0.9 * of_teacher
    assert alone < 0.7 * student
