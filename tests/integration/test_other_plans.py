"""A checkpoint resumes under another plan, another lag and other sizes of it, without being asked to restore in part."""

import dataclasses
import itertools
import json
from typing import Any

import jax
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointStore, load_checkpoint
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.learner.loop import Learner
from jaxsrl.machine.resources import Resources
from jaxsrl.metrics.record_file import RecordFile
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import RunReport, run
from jaxsrl.training.collectors import CollectorFactory
from tests.support.run_configs import run_config

RESTART = "environments start new episodes"
LEARNS = ReplayConfig(
    capacity=512, batch_size=8, min_size=32, gradient_steps_per_env_step=1 / 32, priority_exponent=0.6
)
OPTIONS = {"multiple_learners": {"learner_num_devices": 2}, "central": {"learner_num_devices": 2}}


@dataclasses.dataclass(frozen=True)
class Experiment:
    run: RunConfig
    env: EnvConfig
    network: NetworkConfig


def train(
    directory,
    policy,
    lag,
    updates,
    *,
    suite: Any = "gymnasium",
    hidden=(8,),
    agent="ppo",
    env_seed=0,
    env_kwargs="{}",
    **changes,
):
    settings = {"num_envs": 8, "rollout_length": 4, "pool_num_workers": 2, "pool_lanes_per_worker": 1, "seed": env_seed}
    settings |= OPTIONS.get(policy, {}) | changes
    per_update = settings["num_envs"] * settings["rollout_length"]
    config = run_config(
        name="run",
        directory=str(directory),
        plan=policy,
        max_policy_lag=lag,
        total_env_steps=per_update * updates,
        checkpoint_interval_updates=0,
        **settings,
    )
    env, network = EnvConfig("CartPole-v1", suite=suite, kwargs=env_kwargs), NetworkConfig(hidden_sizes=hidden)
    source = make_env(env)
    spec = source.spec()
    if agent == "dqn":
        made = make_dqn(DQNConfig(replay=LEARNS, total_updates=20, target_update_period=3), spec, network)
    else:
        made = make_ppo(PPOConfig(num_epochs=1, num_minibatches=2), spec, network)
    plan = PLANS[policy](config, Resources.detect())
    return run(plan, made, source, config, experiment=Experiment(config, env, network), spec=spec, quiet=True)


def log_of(report: RunReport) -> str:
    return (report.directory / "log.txt").read_text()


def assert_close(one: RunReport, other: RunReport) -> None:
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_episodes_are_not_replayed_if_so_wanted(tmp_path):
    train(tmp_path, "serial", 0, 3)
    assert RESTART not in log_of(train(tmp_path, "serial", 0, 4))
    assert RESTART in log_of(train(tmp_path, "serial", 0, 5, checkpoint_replay_episodes=False))


HOST_PLANS = [
    *(("serial", 0), ("serial", 1), ("single_learner_fine", 0), ("single_learner_fine", 1), ("single_learner_fine", 2)),
    *(("single_learner_coarse", 0), ("single_learner_coarse", 1), ("single_learner_coarse", 2), ("decoupled", 1)),
    *(("multiple_learners", 0), ("multiple_learners", 1), ("central", 0), ("central", 1)),
]
CHEAP = [(("serial", 0), ("single_learner_coarse", 1)), (("single_learner_fine", 2), ("multiple_learners", 1))]
SLOW = [pair for pair in itertools.permutations(HOST_PLANS, 2) if pair not in CHEAP]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("saved", "resumed"), [*CHEAP, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOW)]
)
def test_a_checkpoint_resumes_under_another_plan_and_lag(tmp_path, saved: tuple[str, int], resumed: tuple[str, int]):
    train(tmp_path, *saved, 3)
    report = train(tmp_path, *resumed, 6)
    assert report.num_updates == 6
    assert RESTART not in log_of(report)
    assert "could not be restored" not in log_of(report)
    record = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["policy/lag_max"] <= resumed[1]
    assert json.loads((report.directory / "config.json").read_text())["experiment"]["run"]["plan"] == resumed[0]
    if saved[1] == resumed[1] == 0:
        assert_close(report, train(tmp_path / "whole", "serial", 0, 6))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_plan_changes_at_lag_0_keep_parameters(tmp_path):
    for updates, policy in ((3, "serial"), (6, "single_learner_fine"), (9, "serial")):
        report = train(tmp_path / "parts", policy, 0, updates)
    whole = train(tmp_path / "whole", "serial", 0, 9)
    assert_close(report, whole)
    assert report.metrics == whole.metrics


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("saved", "resumed"),
    [(("device_only", 0), ("serial", 1)), pytest.param(("serial", 1), ("device_only", 0), marks=pytest.mark.slow)],
)
def test_plan_change_from_device_restarts_environments(tmp_path, saved: tuple[str, int], resumed: tuple[str, int]):
    train(tmp_path, *saved, 3, suite="jax")
    report = train(tmp_path, *resumed, 6, suite="jax")
    assert report.num_updates == 6
    assert log_of(report).count(RESTART) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", ["decoupled", "multiple_learners", "central", "single_learner_coarse"])
def test_host_plans_and_device_loop_resume_each_other(tmp_path, policy):
    for updates, one in ((2, "device_only"), (4, policy), (6, "device_only")):
        assert train(tmp_path, one, 1, updates, suite="jax").num_updates == updates
    report = train(tmp_path, "device_only", 1, 7, suite="jax")
    assert log_of(report).count(RESTART) == 2  # its own checkpoint has them again


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("policy", "lag"),
    [
        ("single_learner_fine", 1),
        *(pytest.param(*plan, marks=pytest.mark.slow) for plan in [*HOST_PLANS, ("central", 2), ("decoupled", 2)]),
    ],
)
def test_a_partial_restore_trains_on_at_every_lag(tmp_path, policy, lag):
    train(tmp_path, policy, lag, 2)
    report = train(tmp_path, policy, lag, 4, hidden=(6,), checkpoint_partial_restore=True)
    assert report.num_updates == 4
    assert "partial restore: " in log_of(report)
    assert RESTART in log_of(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_asynchronous_replicas_take_over_a_checkpoint_of_lag_0(tmp_path):
    train(tmp_path, "serial", 0, 3)
    report = train(tmp_path, "central", 1, 6, learner_gradients="asynchronous")
    assert report.num_updates == 6
    assert RESTART not in log_of(report)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("num_envs", "rollout_length", "first"),
    [(4, 4, 4), pytest.param(16, 4, 1, marks=pytest.mark.slow), pytest.param(8, 6, 1, marks=pytest.mark.slow)],
)
def test_env_steps_continue_with_another_update_size(tmp_path, num_envs, rollout_length, first):
    """64 env steps in updates of 32 are `first` updates of the new size, to the nearest one."""
    size, other = num_envs * rollout_length, {"num_envs": num_envs, "rollout_length": rollout_length}
    train(tmp_path, "serial", 1, 2)
    before = (tmp_path / "run/config.json").read_text()
    with pytest.raises(UserError, match=r"run\.(num_envs: 8|rollout_length: 4) -> .*\n.*--checkpoint\.partial-restore"):
        train(tmp_path, "serial", 1, first + 2, **other)
    assert (tmp_path / "run/config.json").read_text() == before
    report = train(tmp_path, "serial", 1, first + 2, checkpoint_partial_restore=True, **other)
    assert (report.env_steps_before, report.env_steps, report.num_updates) == (
        first * size,
        (first + 2) * size,
        first + 2,
    )
    assert f"{size} env steps now: 64 count as {first} updates, {first * size} env steps" in log_of(report)
    assert (RESTART in log_of(report)) == (num_envs != 8)
    assert CheckpointStore(tmp_path / "run/checkpoints").steps() == [first, first + 2]  # none with an old number
    report = train(tmp_path, "serial", 1, first + 3, **other)
    assert (report.env_steps_before, report.env_steps) == ((first + 2) * size, (first + 3) * size)
    records = RecordFile(tmp_path / "run/metrics.jsonl")
    records.refresh()
    written = list(records.columns["env_steps"])
    assert (64 in written, written[-1]) == (
        first * size >= 64,
        (first + 3) * size,
    )  # an earlier record counts env steps too


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_models_keep_the_update_size(tmp_path):
    train(tmp_path, "serial", 1, 2, checkpoint_keep_every=32)
    with pytest.raises(UserError, match=r"models of .*are numbered by updates .*--run\.init-from"):
        train(tmp_path, "serial", 1, 8, num_envs=4, checkpoint_partial_restore=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("change", [{"env_seed": 1}, pytest.param({"suite": "jax"}, marks=pytest.mark.slow)])
def test_partial_restore_does_not_repeat_episodes(tmp_path, change):
    train(tmp_path, "serial", 0, 2)
    report = train(tmp_path, "serial", 0, 3, checkpoint_partial_restore=True, **change)
    assert report.num_updates == 3
    assert RESTART in log_of(report)
    assert "could not be restored" not in log_of(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_partial_restore_of_other_environment_drops_replay(tmp_path):
    train(tmp_path, "serial", 0, 2, agent="dqn")
    kwargs = '{"sutton_barto_reward": true}'
    report = train(tmp_path, "serial", 0, 3, agent="dqn", env_kwargs=kwargs, checkpoint_partial_restore=True)
    assert "experience is of another environment: replay starts empty" in log_of(report)
    arrays = load_checkpoint(tmp_path / "run/checkpoints/3")[0]
    rewards = next(value for name, value in arrays.items() if name.startswith("replay") and "reward" in name)
    assert not (rewards == 1.0).any()  # a step's reward in the first environment; in the second it is 0 or -1


@pytest.mark.timeout(600)
def test_unfit_checkpoint_keeps_the_configuration(tmp_path, monkeypatch):
    train(tmp_path, "serial", 0, 2)
    before = [(tmp_path / "run" / name).read_text() for name in ("config.json", "plan.json")]
    monkeypatch.setattr(
        "jaxsrl.checkpoints.run_directory.differences", lambda *_: []
    )  # as if the network were no option
    with pytest.raises(UserError, match=r"another network or algorithm(.|\n)*--checkpoint\.partial-restore"):
        train(tmp_path, "single_learner_fine", 1, 4, hidden=(6,))
    assert [(tmp_path / "run" / name).read_text() for name in ("config.json", "plan.json")] == before


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        (("serial", 0), ("single_learner_fine", 1)),
        (("single_learner_coarse", 1), ("distributed_replay", 2)),
        (("distributed_replay", 1), ("serial", 0)),
    ],
)
def test_experience_moves_between_host_and_device(tmp_path, saved: tuple[str, int], resumed: tuple[str, int]):
    train(tmp_path, *saved, 4, agent="dqn")
    report = train(tmp_path, *resumed, 8, agent="dqn")
    assert report.num_updates == 8
    assert "replay starts empty" not in log_of(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("replay_on", ["device", "host"])
def test_partial_restore_drops_experience_of_other_size(tmp_path, replay_on):
    train(tmp_path, "serial", 0, 4, agent="dqn", replay_memory=replay_on)
    report = train(
        tmp_path, "serial", 0, 8, agent="dqn", replay_memory=replay_on, num_envs=4, checkpoint_partial_restore=True
    )
    assert report.num_updates == 8
    assert "experience does not fit: replay starts empty" in log_of(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_resume_after_drops_acts_with_new_keys(tmp_path, monkeypatch):
    keys, steps = [], []
    step, make = Learner.step, CollectorFactory.make_collector

    def drop_one_and_step(self, observe):
        sequence = self._source.acquire(0.2)
        if sequence is None:
            return False
        observe(self._source.slots(sequence))
        self._source.drop(sequence)
        while not step(self, observe):
            pass
        return True

    def note_key(self, config):
        keys.append(jax.random.key_data(config.act_key).tolist())
        return make(self, config)

    monkeypatch.setattr(Learner, "step", drop_one_and_step)
    monkeypatch.setattr(CollectorFactory, "make_collector", note_key)
    for updates in (2, 4):
        report = train(tmp_path, "single_learner_fine", 2, updates, learner_when_full="drop_oldest")
        steps.append(int(load_checkpoint(report.directory / "checkpoints" / str(updates))[0]["steps"]))
    assert keys[0] != keys[1]
    assert steps[0] >= 2 * 2 * 4  # each update dropped a trajectory of 4 steps, at least
    assert steps[1] >= steps[0] + 2 * 2 * 4
