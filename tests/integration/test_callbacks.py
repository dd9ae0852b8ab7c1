"""Callbacks of a run: what they see, how they stop and save it, and what their errors leave."""

import json
import time

import numpy as np
import pytest

import jaxsrl
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.metrics.evaluations import append_evaluation
from jaxsrl.models.store import MODELS, RETURN, ModelStore
from jaxsrl.training import train as training
from jaxsrl.training.device_trainable import DeviceTrainable
from jaxsrl.training.stop_rules import Plateau, TargetReturn
from tests.support.run_configs import run_config

SMALL = PPOConfig(num_minibatches=1, num_epochs=1)
STEPS_PER_UPDATE = 4 * 8


def train(directory, callbacks=(), env="CartPole-v1", updates=6, **changes):
    settings = {"num_envs": 4, "rollout_length": 8, "plan": "serial", "eval_final_episodes": 0, "seed": 3}
    settings |= {"checkpoint_interval_updates": 0, "metrics_interval_seconds": 0.0}
    places = {"name": "run", "directory": str(directory), "total_env_steps": updates * STEPS_PER_UPDATE}
    agent = make_ppo(SMALL, jaxsrl.make_env(env).spec(), NetworkConfig(hidden_sizes=(4,)))
    return jaxsrl.train(agent, env, run_config(**{**places, **settings, **changes}), quiet=True, callbacks=callbacks)


class Recorder(jaxsrl.Callback):
    """Notes every call."""

    def __init__(self):
        self.calls, self.episodes, self.updates = [], [], []

    def on_start(self, run):
        self.calls.append("start")
        assert run.num_updates == 0

    def on_update(self, run):
        self.updates.append((run.num_updates, run.env_steps, run.metrics()["loss/total"]))

    def on_episode(self, run, episodes):
        self.episodes += episodes

    def on_checkpoint(self, run, path):
        self.calls.append(f"checkpoint {path.name}")
        assert path.is_dir()

    def on_stop(self, run, reason):
        self.calls.append(f"stop {reason}")


def test_callbacks_see_updates_episodes_and_checkpoints(tmp_path):
    seen = Recorder()
    steps = {"rollout_length": 64, "total_env_steps": 6 * 4 * 64}  # episodes end in the first update
    report = train(tmp_path, [seen], checkpoint_interval_updates=4, **steps)
    assert seen.calls == ["start", "checkpoint 4", "checkpoint 6", "stop complete"]
    assert [update[:2] for update in seen.updates] == [(n, n * 4 * 64) for n in range(1, 7)]
    assert len({update[2] for update in seen.updates}) == 6
    assert len(seen.episodes) == report.metrics["episode/count"] > 0
    assert sum(episode.return_ for episode in seen.episodes) == report.metrics["episode/return_sum"]
    assert all(episode.length == episode.return_ for episode in seen.episodes)  # CartPole rewards each step with 1


def test_device_plan_calls_callbacks(tmp_path):
    seen = Recorder()
    env = jaxsrl.EnvConfig("CartPole-v1", suite="jax")
    train(tmp_path, [seen], env, plan="device_only", checkpoint_interval_updates=3)
    assert seen.calls == ["start", "checkpoint 3", "checkpoint 6", "stop complete"]
    updates = [update[0] for update in seen.updates]
    assert updates == sorted(set(updates))
    assert {1, 3, 6} <= set(updates) <= set(range(1, 7))  # a slow machine makes smaller dispatches


def test_device_plan_counts_compilation_as_training_time(tmp_path, monkeypatch):
    start = DeviceTrainable.start

    def start_slowly(trainable):
        time.sleep(2.0)
        return start(trainable)

    monkeypatch.setattr(DeviceTrainable, "start", start_slowly)
    report = train(tmp_path, [], jaxsrl.EnvConfig("CartPole-v1", suite="jax"), plan="device_only")
    records = [json.loads(line) for line in (report.directory / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["wall_seconds"] > 2.0


class Stops(jaxsrl.Callback):
    """Stops and saves at some updates."""

    def __init__(self, stop_at, save_at=0):
        self.stop_at, self.save_at = stop_at, save_at

    def on_update(self, run):
        if run.num_updates == self.save_at:
            assert run.save()
        if run.num_updates == self.stop_at:
            run.stop("enough")


def test_stopped_run_saves_and_the_same_command_continues(tmp_path):
    report = train(tmp_path, [Stops(4, save_at=2)])
    assert (report.num_updates, report.stop_reason, report.stopped_by) == (4, "enough", "")
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps() == [2, 4]
    assert "stopped: enough at update 4" in (tmp_path / "run" / "log.txt").read_text()
    report = train(tmp_path)
    assert (report.num_updates, report.stop_reason) == (6, "")


class Work(Recorder):
    """Needs a run whose updates are complete."""

    def on_start(self, run):
        self.calls.append("start")

    def has_work(self, config, directory, num_updates):
        return True


@pytest.mark.slow
def test_provenance_is_of_processes_that_train(tmp_path, monkeypatch):
    commands = iter(["trains", "only calls"])
    monkeypatch.setattr(training, "read_provenance", lambda: {"command": next(commands)})
    train(tmp_path, updates=2)
    work = Work()
    report = train(tmp_path, [work], updates=2)
    assert work.calls == ["start", "stop complete"]
    assert json.loads((report.directory / "provenance.json").read_text()) == [{"command": "trains"}]


def test_a_reason_is_required(tmp_path):
    class Silent(jaxsrl.Callback):
        def on_start(self, run):
            run.stop("")

    with pytest.raises(UserError, match="expected a short sentence"):
        train(tmp_path, [Silent()])


@pytest.mark.parametrize("name", ["on_update", "on_episode", "on_checkpoint"])
def test_error_of_a_callback_ends_the_run_and_loses_nothing(tmp_path, name):
    def fail(self, run, *arguments):
        if run.num_updates >= 4:
            raise ZeroDivisionError("out of ideas")

    failing = type("Failing", (jaxsrl.Callback,), {name: fail})
    with pytest.raises(ZeroDivisionError, match="out of ideas"):
        train(tmp_path, [failing()], updates=40)
    steps = CheckpointStore(tmp_path / "run" / "checkpoints").steps()
    assert steps
    assert train(tmp_path, updates=steps[-1]).num_updates == steps[-1], "the checkpoint is complete"


def test_callbacks_change_nothing_that_is_learned(tmp_path):
    import jax
    import numpy as np

    plain = train(tmp_path / "plain")
    watched = train(tmp_path / "watched", [Recorder(), Stops(0, save_at=3)])
    for one, other in zip(jax.tree.leaves(plain.state), jax.tree.leaves(watched.state), strict=True):
        np.testing.assert_array_equal(one, other)


def test_target_return_ends_a_run(tmp_path):
    report = train(tmp_path, updates=400, target_return=5.0)
    assert report.num_updates < 400
    assert report.metrics["episode/count"] >= 100
    assert "of the last 100 episodes reaches the target 5 (--run.target-return)" in report.stop_reason
    again = train(tmp_path, updates=400, target_return=5.0)
    assert (again.num_updates, again.stop_reason) == (report.num_updates, report.stop_reason)


def test_time_limit_ends_a_run(tmp_path):
    report = train(tmp_path, updates=100_000, max_hours=0.2 / 3600)
    assert report.num_updates < 100_000
    assert report.stop_reason == "5.55556e-05 hours are over (--run.max-hours)"


def test_gradient_steps_are_no_budget_without_replay(tmp_path):
    with pytest.raises(UserError, match="which agent ppo is not: use --run.total-env-steps instead"):
        train(tmp_path, gradient_steps=10)


class FakeRun:
    """The part of an ActiveRun that stop rules use."""

    def __init__(self, directory, mode="greedy"):
        self.directory, self.reason = directory, ""
        self.config, self.spec = run_config(eval_mode=mode), jaxsrl.make_env("CartPole-v1").spec()

    def stop(self, reason):
        self.reason = self.reason or reason

    def episodes(self):
        return {"episode/count": 100.0, "episode/return_mean": 12.0}


def make_evaluation(env_steps, mean_return, mode="greedy"):
    values = {"std_return": 0.0, "min_return": 0.0, "max_return": 0.0, "mean_length": 1.0, "seed": 0, "seconds": 1.0}
    return jaxsrl.Evaluation(env_steps // 10, env_steps, env_steps, mode, mean_return, episodes=2, **values)


def test_plateau_counts_from_the_best_evaluation(tmp_path):
    run, rule = FakeRun(tmp_path), Plateau(300)
    for env_steps, mean_return in [(100, 1.0), (200, 3.0), (300, 2.0), (400, 3.0)]:
        rule.on_evaluation(run, make_evaluation(env_steps, mean_return))
    rule.on_evaluation(run, make_evaluation(450, 9.0, "sample"))
    assert not run.reason
    rule.on_evaluation(run, make_evaluation(500, 2.9))
    assert run.reason.startswith("the evaluation return has not exceeded 3.00 at 200 env steps since")


def test_plateau_forgets_what_a_roll_back_has_abandoned(tmp_path):
    run, rule = FakeRun(tmp_path), Plateau(300)
    rule.on_evaluation(run, make_evaluation(100, 1.0))
    rule.on_evaluation(run, make_evaluation(200, 9.0))
    rule.on_roll_back(run, 10)  # to 100 env steps; updates are counted on
    for env_steps, mean_return in [(300, 3.0), (500, 2.0)]:
        rule.on_evaluation(run, make_evaluation(env_steps, mean_return))
    assert not run.reason
    rule.on_evaluation(run, make_evaluation(600, 2.0))
    assert run.reason.startswith("the evaluation return has not exceeded 3.00 at 300 env steps since")


def test_plateau_of_a_resumed_run_forgets_abandoned_evaluations(tmp_path):
    run, rule, store = FakeRun(tmp_path), Plateau(300), ModelStore(tmp_path / MODELS)
    for env_steps, mean_return in [(100, 1.0), (200, 9.0), (300, 3.0)]:
        evaluation = make_evaluation(env_steps, mean_return)
        append_evaluation(tmp_path, evaluation)
        store.save(evaluation.update, {"n": np.array(0)}, {}, **{RETURN: mean_return})
    store.save(20, {"n": np.array(0)}, {}, ["mine"])
    store.abandon(10)
    store.save(30, {"n": np.array(0)}, {}, **{RETURN: 3.0})
    rule.on_start(run)
    rule.on_evaluation(run, make_evaluation(500, 2.0))
    assert not run.reason
    rule.on_evaluation(run, make_evaluation(600, 2.0))
    assert run.reason.startswith("the evaluation return has not exceeded 3.00 at 300 env steps since")


@pytest.mark.parametrize(
    ("mode", "counting", "other"),
    [("greedy", "greedy", "sample"), ("both", "greedy", "sample"), ("sample", "sample", "greedy")],
)
def test_stop_rules_count_evaluations_that_choose_the_best_model(tmp_path, mode, counting, other):
    run, rule = FakeRun(tmp_path, mode), TargetReturn(10.0)
    rule.on_evaluation(run, make_evaluation(100, 12.0, other))
    assert not run.reason
    rule.on_evaluation(run, make_evaluation(200, 10.0, counting))
    assert run.reason == "evaluation return 10.00 at 200 env steps reaches the target 10 (--run.target-return)"
    run, rule = FakeRun(tmp_path, mode), Plateau(100)
    for env_steps, mean_return, each in [(100, 1.0, counting), (150, 9.0, other), (300, 1.0, other)]:
        rule.on_evaluation(run, make_evaluation(env_steps, mean_return, each))
    assert not run.reason
    rule.on_evaluation(run, make_evaluation(300, 1.0, counting))
    assert run.reason.startswith("the evaluation return has not exceeded 1.00 at 100 env steps since")


@pytest.mark.parametrize(("target", "is_reached"), [(12.0, True), (13.0, False)])
def test_target_of_restored_episodes_ends_a_run_at_its_start(tmp_path, target, is_reached):
    run = FakeRun(tmp_path)
    TargetReturn(target).on_start(run)
    assert bool(run.reason) == is_reached


def test_plateau_needs_evaluations():
    with pytest.raises(UserError, match="use --eval.every 100000"):
        run_config(plateau_env_steps=100)
