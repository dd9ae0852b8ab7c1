"""Evaluation while a run trains: what it records, that it changes nothing that is learned, and what interruptions leave."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

import jaxsrl
from agents.api import Mode
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from jaxsrl.evaluation import while_training
from jaxsrl.evaluation.evaluator import Evaluator, EvaluatorDiedError
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.metrics.evaluations import EVALUATIONS, read_evaluations
from jaxsrl.models.store import ModelStore
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.run_state import restore_state
from tests.support.run_configs import run_config

SMALL = PPOConfig(num_minibatches=1, num_epochs=1)
REPLAY = jaxsrl.ReplayConfig(capacity=256, batch_size=8, min_size=32, gradient_steps_per_env_step=0.125)
NETWORK = NetworkConfig(hidden_sizes=(4,))
STEPS = 4 * 8


def make_agent(name, env):
    spec = jaxsrl.make_env(env).spec()
    return (
        make_ppo(SMALL, spec, NETWORK)
        if name == "ppo"
        else make_dqn(DQNConfig(replay=REPLAY, total_updates=9), spec, NETWORK)
    )


def train(directory, agent="ppo", env="CartPole-v1", updates=9, callbacks=(), **changes):
    settings = {"num_envs": 4, "rollout_length": 8, "plan": "serial", "eval_final_episodes": 0, "seed": 3}
    settings |= {"checkpoint_interval_updates": 2, "metrics_interval_seconds": 0.0, "pool_num_workers": 1}
    settings |= {"eval_every": 100, "eval_episodes": 3, "max_policy_lag": 0}
    places = {"name": "run", "directory": str(directory), "total_env_steps": updates * STEPS}
    config = run_config(**{**places, **settings, **changes})
    return jaxsrl.train(make_agent(agent, env), env, config, quiet=True, callbacks=callbacks)


def assert_same_state(one, other):
    for mine, theirs in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("agent", "env", "plan"),
    [
        ("ppo", "CartPole-v1", "single_learner_fine"),
        ("ppo", jaxsrl.EnvConfig("CartPole-v1", suite="jax"), "device_only"),
        ("dqn", "CartPole-v1", "serial"),
        ("ppo", "CartPole-v1", "serial"),
    ],
    ids=["ppo with a pool", "ppo on devices", "dqn", "ppo"],
)
def test_evaluation_changes_nothing_that_is_learned(tmp_path, agent, env, plan):
    plain = train(tmp_path / "plain", agent, env, plan=plan, eval_every=0)
    watched = train(tmp_path / "watched", agent, env, plan=plan)
    assert_same_state(plain, watched)
    evaluations = read_evaluations(watched.directory)
    # The first updates at or past 100 and 200 env steps, and the last one.
    assert [(each.update, each.env_steps) for each in evaluations] == [(4, 128), (7, 224), (9, 288)]
    assert all(each.episodes == 3 and each.mode == "greedy" and each.seed == 3 for each in evaluations)
    assert not read_evaluations(plain.directory)


def test_records_equal_those_of_the_command(tmp_path):
    class Seen(jaxsrl.Callback):
        evaluations = ()

        def on_evaluation(self, run, evaluation):
            self.evaluations = (*self.evaluations, evaluation)

    seen = Seen()
    report = train(tmp_path, callbacks=[seen], eval_mode="both")
    evaluations = read_evaluations(report.directory)
    assert list(seen.evaluations) == evaluations
    assert [(each.update, each.mode) for each in evaluations] == [
        (update, mode) for update in (4, 7, 9) for mode in ("greedy", "sample")
    ]
    greedy = [each for each in evaluations if each.mode == "greedy"]
    best = max(greedy, key=lambda each: each.mean_return)
    store = ModelStore(report.directory / "models")
    assert store.find("best").version == next(each.update for each in greedy if each.mean_return == best.mean_return)
    assert store.find("best").metadata["return"] == best.mean_return
    assert set(store.tags()) == {"best"}, "versions that were evaluated are no longer pinned"
    # An agent made in Python is not rebuilt from its metadata: play the saved parameters with the same function.
    agent = make_agent("ppo", "CartPole-v1")
    for each in evaluations[-2:]:
        _, arrays = store.load(str(each.update))
        params = restore_state(agent, jax.random.key(0), arrays).params
        mode = Mode(each.mode)
        played = jaxsrl.evaluate_agent(agent, params, jaxsrl.make_env("CartPole-v1"), episodes=3, seed=3, mode=mode)
        assert played.mean_return == each.mean_return


def test_functions_are_evaluated_with_other_arguments_rejected(tmp_path):
    def make(length=20):
        return gymnasium.make("CartPole-v1", max_episode_steps=length)

    report = train(tmp_path, env=make)
    assert max(each.max_return for each in read_evaluations(report.directory)) <= 20
    with pytest.raises(UserError, match="the environment of this run is a function"):
        train(tmp_path / "other", env=make, eval_env_kwargs='{"length": 3}')
    with pytest.raises(UserError, match="eval.env_kwargs: expected NAME=VALUE fields, .* got '3'"):
        train(tmp_path / "other", eval_env_kwargs="3 4")


def test_evaluation_may_have_other_arguments(tmp_path):
    from experiments import ppo_cartpole

    run = run_config(
        directory=str(tmp_path), name="run", num_envs=4, rollout_length=8, total_env_steps=4 * STEPS, plan="serial",
        eval_every=100, eval_episodes=2, eval_final_episodes=2, eval_env_kwargs='{"max_episode_steps": 5}',
    )  # fmt: skip
    agent = dataclasses.replace(ppo_cartpole.EXPERIMENT.agent, num_minibatches=1)
    report = dataclasses.replace(ppo_cartpole.EXPERIMENT, run=run, agent=agent).train(quiet=True)
    assert [each.max_return for each in read_evaluations(report.directory)] == [5.0]
    assert report.evaluation is not None
    assert max(report.evaluation.returns) == 5.0
    assert load_agent(report.directory.with_name("run@best")).update == 4


@pytest.mark.slow
def test_the_agents_that_count_decide_the_best_version(tmp_path):
    env = jaxsrl.EnvConfig("pettingzoo/classic/rps_v2", suite="pettingzoo", kwargs='{"max_cycles": 5}')
    experiment = jaxsrl.Experiment(
        env,
        SMALL,
        NETWORK,
        run_config(
            **{"name": "run", "directory": str(tmp_path), "num_envs": 4, "rollout_length": 8, "plan": "serial"},
            **{"total_env_steps": 3 * STEPS, "eval_every": STEPS, "eval_episodes": 3, "eval_mode": "sample"},
            **{"eval_final_episodes": 3, "eval_agents": "player_1", "metrics_interval_seconds": 0.0},
        ),
    )
    report = experiment.train(quiet=True)
    evaluations = read_evaluations(report.directory)
    assert len(evaluations) == 3
    for evaluation in evaluations:
        assert set(evaluation.agent_returns) == {"player_0", "player_1"}
        assert evaluation.mean_return == evaluation.agent_returns["player_1"] == -evaluation.agent_returns["player_0"]
    best = max(evaluations, key=lambda evaluation: evaluation.mean_return)
    assert ModelStore(report.directory / "models").find("best").metadata["return"] == best.mean_return
    final = json.loads((report.directory / "eval.json").read_text())
    assert final["mean_return"] == final["agent_returns"]["player_1"]
    records = [json.loads(line) for line in (report.directory / "metrics.jsonl").read_text().splitlines()]
    newest = records[-1]
    assert newest["episode/return/player_0"] == -newest["episode/return/player_1"]


def test_a_pattern_of_no_agent_is_rejected_before_training(tmp_path):
    with pytest.raises(UserError, match=r"eval.agents 'prey_\*': .* CartPole-v1's agents \(none: each row is an env"):
        train(tmp_path, eval_agents="prey_*")
    assert not (tmp_path / "run").exists()


def test_failed_evaluations_do_not_end_the_run(tmp_path):
    learner = os.getpid()

    class FailsElsewhere(gymnasium.Wrapper):
        def step(self, action):
            if os.getpid() != learner:
                raise ValueError("not here")
            return super().step(action)

    report = train(tmp_path, env=lambda: FailsElsewhere(gymnasium.make("CartPole-v1")))
    assert report.num_updates == 9
    assert not read_evaluations(report.directory)
    log = (report.directory / "log.txt").read_text()
    assert "ValueError: not here" in log
    assert log.count("is not evaluated; training continues") == 3


def test_killed_evaluator_is_started_again(tmp_path):
    class Kills(jaxsrl.Callback):
        def on_evaluation(self, run, evaluation):
            if evaluation.update == 4:
                for child in evaluators(os.getpid()):
                    os.kill(child, signal.SIGKILL)

    report = train(tmp_path, callbacks=[Kills()])
    assert [each.update for each in read_evaluations(report.directory)] == [4, 7, 9]
    assert "the evaluator ended with status -9" in (report.directory / "log.txt").read_text()


def test_hung_evaluation_delays_the_end_until_its_deadline(tmp_path):
    learner, hung, deadline = os.getpid(), tmp_path / "hung", time.monotonic() + 300.0

    class HangsElsewhere(gymnasium.Wrapper):
        def step(self, action):
            if os.getpid() != learner:
                hung.touch()
                time.sleep(3600.0)
            return super().step(action)

    class ShortDeadline(jaxsrl.Callback):
        def on_update(self, run):
            while run.num_updates == 9 and not hung.exists() and time.monotonic() < deadline:
                run.wait(0.1)
            if hung.exists():  # compiling and the start of the evaluator take longer
                run.config = dataclasses.replace(run.config, stall_timeout_seconds=1.0)

    report = train(tmp_path, env=lambda: HangsElsewhere(gymnasium.make("CartPole-v1")), callbacks=[ShortDeadline()])
    assert report.num_updates == 9
    assert hung.exists()
    log = (report.directory / "log.txt").read_text()
    assert "the evaluator made no step for" in log
    assert "update 9 is not evaluated" in log
    assert not [tag for tag in ModelStore(report.directory / "models").tags() if tag.startswith("pending")]
    assert not evaluators(os.getpid())


def test_a_pause_does_not_count_against_the_deadline(tmp_path, monkeypatch):
    learner, resumed, wait_seconds, paused = os.getpid(), tmp_path / "resumed", ActiveRun.wait, [0.0]

    class WaitsElsewhere(gymnasium.Wrapper):
        def step(self, action):
            while os.getpid() != learner and not resumed.exists():
                time.sleep(0.05)
            return super().step(action)

    class PausesAtTheEnd(jaxsrl.Callback):
        def on_update(self, run):
            if run.num_updates == 9:
                monkeypatch.setattr(ActiveRun, "wait", wait)

    def wait(run, seconds):
        wait_seconds(run, 0.1)
        if not resumed.exists():
            paused[0] = 10.0 * run.config.stall_timeout_seconds  # as if the process were stopped during this wait
            resumed.touch()

    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + paused[0])
    monkeypatch.setattr(while_training, "time", clock)

    report = train(tmp_path, env=lambda: WaitsElsewhere(gymnasium.make("CartPole-v1")), callbacks=[PausesAtTheEnd()])
    assert "made no step" not in (report.directory / "log.txt").read_text()
    assert [each.update for each in read_evaluations(report.directory)] == [4, 7, 9]


def test_complete_run_evaluates_what_a_killed_process_left(tmp_path):
    report = train(tmp_path)
    path, store = report.directory / EVALUATIONS, ModelStore(report.directory / "models")
    evaluations = read_evaluations(report.directory)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    store.tag("pending-9", "9")
    again = train(tmp_path)
    assert again.num_updates == 9
    assert_same_state(report, again)
    assert [dataclasses.replace(each, seconds=0.0) for each in read_evaluations(report.directory)] == [
        dataclasses.replace(each, seconds=0.0) for each in evaluations
    ]
    assert set(store.tags()) == {"best"}
    train(tmp_path)
    assert (report.directory / "log.txt").read_text().count("already complete") == 1


def test_resumed_run_tags_best_of_a_recorded_version(tmp_path):
    # A process killed right after the record of update 7: its return and tag are missing, and it is still pinned.
    report = train(tmp_path, updates=7)
    path, store = report.directory / EVALUATIONS, ModelStore(report.directory / "models")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]["mean_return"] = 1e6
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store.tag("best", "4")
    store.tag("pending-7", "7")
    train(tmp_path)
    assert store.find("best").version == 7
    assert store.find("best").metadata["return"] == 1e6
    assert [each.update for each in read_evaluations(report.directory)] == [4, 7, 9]


def test_checkpoint_without_its_pinned_version_is_evaluated(tmp_path):
    # A process killed between the checkpoint of update 4 and the first evaluation.
    report = train(tmp_path, updates=4, eval_every=0)
    assert not read_evaluations(report.directory)
    train(tmp_path)
    assert [each.update for each in read_evaluations(report.directory)] == [4, 7, 9]


def test_mode_that_fails_leaves_the_other_one(tmp_path, monkeypatch):
    class FailsGreedy(Evaluator):
        def send(self, task):
            if task["mode"] == "greedy":
                raise EvaluatorDiedError("not this mode")
            super().send(task)

    monkeypatch.setattr(while_training, "Evaluator", FailsGreedy)
    report = train(tmp_path, eval_mode="both", checkpoint_models_to_keep=0)
    modes = [(each.update, each.mode) for each in read_evaluations(report.directory)]
    assert modes == [(4, "sample"), (7, "sample"), (9, "sample")]
    assert (report.directory / "log.txt").read_text().count("is not evaluated") == 3


def evaluators(parent):
    """Process ids of the evaluators that a process has started, and that still run."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"evaluator" in Path(f"/proc/{child}/cmdline").read_bytes()]


RUN = (
    sys.executable, "experiments/ppo_cartpole.py", "--plan", "serial", "--run.num-envs", "8", "--run.rollout-length", "16",
    "--eval.every", "2000", "--eval.episodes", "20", "--eval.final-episodes", "0", "--checkpoint.interval-updates", "5",
    "--run.name", "run", "--metrics.no-tensorboard",
)  # fmt: skip


def test_killed_run_evaluates_pinned_versions_once(tmp_path):
    flags = ("--run.directory", str(tmp_path), "--run.total-env-steps", "12800")
    directory = tmp_path / "run"
    killed = subprocess.Popen([*RUN, *flags], cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300.0
    while not (started := evaluators(killed.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    assert list(directory.glob("models/[0-9]*"))
    assert started
    while any(Path(f"/proc/{each}").exists() for each in started) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [each for each in started if Path(f"/proc/{each}").exists()]
    subprocess.run([*RUN, *flags], cwd=Path(__file__).parents[2], check=True, stdout=subprocess.DEVNULL, timeout=600)
    lines = [json.loads(line) for line in (directory / EVALUATIONS).read_text().splitlines()]
    assert [line["update"] for line in lines] == [16, 32, 47, 63, 79, 94, 100]
    assert set(ModelStore(directory / "models").tags()) == {"best"}


def test_group_signal_leaves_no_evaluator(tmp_path):
    flags = ("--run.directory", str(tmp_path), "--run.total-env-steps", "10000000")
    run = subprocess.Popen(
        [*RUN, *flags], cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 300.0
    while not (started := evaluators(run.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGTERM)
    run.wait(timeout=300.0)
    assert started
    assert not [each for each in started if Path(f"/proc/{each}").exists()]


def test_evaluated_return_rises_on_cartpole(tmp_path):
    from experiments import ppo_cartpole

    run = run_config(
        directory=str(tmp_path), name="run", num_envs=16, rollout_length=64, total_env_steps=100_000, plan="serial",
        eval_every=25_000, eval_episodes=10, eval_final_episodes=0,
    )  # fmt: skip
    dataclasses.replace(ppo_cartpole.EXPERIMENT, run=run).train(quiet=True)
    evaluations = read_evaluations(tmp_path / "run")
    returns = [each.mean_return for each in evaluations]
    assert [each.env_steps for each in evaluations] == [25_600, 50_176, 75_776, 100_352]
    assert max(returns) > 300.0
    assert max(returns) > 1.5 * returns[0]
    assert ModelStore(tmp_path / "run" / "models").find("best").metadata["return"] == max(returns)
