"""A run directory answers for everything that determines its result: a change of any of it is never answered by the old run."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import jaxsrl
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError

ENV = """
import gymnasium, numpy as np
from helper_a_run import REWARD
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, length=8):
        self.length = length
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), REWARD, self.steps == self.length, False, {}
gymnasium.register("A-v0", Env)
"""
CONFIG = jaxsrl.RunConfig(
    name="same",
    total_env_steps=64,
    num_envs=4,
    rollout_length=8,
    plan="serial",
    max_policy_lag=0,
    eval=jaxsrl.EvalConfig(final_episodes=1),
)
AGENT, NETWORK = PPOConfig(num_minibatches=1), jaxsrl.NetworkConfig(hidden_sizes=(8,))


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Writes the modules, imports them again, and returns the class of the environments."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # texts of one size and time have the same bytecode file

    def write(env=ENV, helper="REWARD = 1.0\n"):
        (tmp_path / "env_a_run.py").write_text(env)
        (tmp_path / "helper_a_run.py").write_text(helper)
        forget()
        return importlib.import_module("env_a_run").Env

    def forget():
        for name in ("env_a_run", "helper_a_run"):
            sys.modules.pop(name, None)
        gymnasium.registry.pop("A-v0", None)
        importlib.invalidate_caches()

    yield write
    forget()


def train(env, agent=AGENT, network=NETWORK, replaced=None, **run):
    made = make_ppo(agent, jaxsrl.make_env(env).spec(), network)
    made = made if replaced is None else made._replace(**replaced(made))
    return jaxsrl.train(made, env, dataclasses.replace(CONFIG, **run), quiet=True)


def variant(made):
    return {"init": lambda key: made.init(key)}


def make_env(env, length):
    return lambda: env(length)


CHANGES = {
    "learning rate": (lambda env: {"agent": PPOConfig(num_minibatches=1, learning_rate=0.05)}, "agent.learning_rate"),
    "discount": (lambda env: {"agent": PPOConfig(num_minibatches=1, discount=0.9)}, "agent.discount"),
    "network": (lambda env: {"network": jaxsrl.NetworkConfig(hidden_sizes=(8, 8))}, "network.hidden_sizes"),
    "seed": (lambda env: {"seed": 1}, "run.seed"),
    "part of the agent": (lambda env: {"replaced": variant}, "code of make_agent: new"),
    "closure": (lambda env: {"env": make_env(env, 9)}, "code of env: changed"),
    "argument": (lambda env: {"env": lambda: env(9)}, "code of env: changed"),
}


@pytest.fixture
def trained(modules):
    """Returns the environment class of a directory with a complete run of `lambda: Env(8)`."""
    env = modules()
    train(make_env(env, 8))
    return env


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_named_and_refused(trained, change):
    options, named = CHANGES[change]
    with pytest.raises(UserError, match=named):
        train(**{"env": make_env(trained, 8), **options(trained)})


@pytest.mark.parametrize("env", ["env_a_run:A-v0", "function"])
@pytest.mark.parametrize("changed", ["env_a_run", "helper_a_run"])
def test_changed_modules_are_refused_or_accepted(modules, env, changed):
    def again(**run):
        kind = modules(*texts)
        return train(kind if env == "function" else jaxsrl.EnvConfig(env), **run)

    texts = [ENV, "REWARD = 1.0\n"]
    assert again().evaluation.mean_return == again().evaluation.mean_return == 8.0  # pyright: ignore
    texts = [f"{ENV}# new\n", texts[1]] if changed == "env_a_run" else [ENV, "REWARD = 2.0\n"]
    with pytest.raises(UserError, match=f"code of {changed}: changed") as refused:
        again()
    assert "--checkpoint.accept-changed-code" in str(refused.value)
    accepted = again(checkpoint=jaxsrl.CheckpointConfig(accept_changed_code=True))
    assert accepted.evaluation.mean_return == (8.0 if changed == "env_a_run" else 16.0)  # pyright: ignore


def test_changed_modules_are_named_when_a_checkpoint_is_loaded(modules):
    modules()
    run = train(jaxsrl.EnvConfig("env_a_run:A-v0")).directory
    assert jaxsrl.load_agent(run, trust_env=True).mismatches == ""
    modules(helper="REWARD = 2.0\n")
    assert jaxsrl.load_agent(run, trust_env=True).mismatches == "modules have changed since training: helper_a_run"


def test_the_arguments_of_an_env_config_count(modules):
    modules()
    train(jaxsrl.EnvConfig("env_a_run:A-v0", kwargs='{"length": 8}'))
    with pytest.raises(UserError, match=r"env.kwargs"):
        train(jaxsrl.EnvConfig("env_a_run:A-v0", kwargs='{"length": 9}'))


SCRIPT = """
import dataclasses, os, signal, sys
from functools import partial
import gymnasium, jaxsrl
from agents.ppo import PPOConfig, make_ppo

@dataclasses.dataclass(frozen=True)
class MyConfig:
    rate: float = 0.01

def make_mine(config: MyConfig, spec, network):
    return make_ppo(PPOConfig(learning_rate=config.rate, num_minibatches=1), spec, network)

def make_env(limit):
    return gymnasium.make("CartPole-v1", max_episode_steps=limit)

class Stop(jaxsrl.Callback):
    def on_update(self, run):
        if os.path.exists("stop"):
            os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    run = jaxsrl.RunConfig(
        total_env_steps=int(sys.argv[1]), num_envs=4, rollout_length=8, plan="serial", eval=jaxsrl.EvalConfig(final_episodes=2)
    )
    env = partial(make_env, limit=7)
    jaxsrl.Experiment(env, MyConfig(0.02), jaxsrl.NetworkConfig(hidden_sizes=(4,)), run, make_agent=make_mine).train(
        callbacks=[Stop()]
    )
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_that_a_run_prints_and_stores_work(tmp_path):
    """A script's own agent and environment: resumed, evaluated, recorded, exported, and trained again elsewhere."""

    def call(command, place="one"):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path / place, env=environment, capture_output=True, text=True
        )
        assert not done.returncode, done.stderr[-2000:]
        return done.stdout

    environment = {**os.environ, "PYTHONPATH": str(Path(jaxsrl.__file__).parents[1])}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for place in ("one", "two"):
        (tmp_path / place / "sub").mkdir(parents=True)
        (tmp_path / place / "sub/mine_a_run.py").write_text(SCRIPT)
    (tmp_path / "one/stop").touch()
    stopping = ["bash", "-c", "python sub/mine_a_run.py 64"]
    stopped = subprocess.run(
        stopping, cwd=tmp_path / "one", env=environment, capture_output=True, text=True, check=False
    )
    (tmp_path / "one/stop").unlink()
    resumes = stopped.stdout.partition("the same command resumes: ")[2]
    assert resumes == "python sub/mine_a_run.py 64\n"
    lines = call(resumes).splitlines()
    commands = [
        line.strip() for line in lines[lines.index(next(line for line in lines if "config.json" in line)) + 1 :]
    ]
    (run,) = (tmp_path / "one/runs").glob("mine_a_run*")
    printed = {words[2]: " ".join(words) for words in map(str.split, commands) if words[1] == "jaxsrl"}
    assert printed.keys() == {"evaluate", "record", "export"}
    assert "7.00" in call(printed["evaluate"])  # steps of an episode: the limit counts
    call(printed["record"])
    call(printed["export"])
    assert {"episodes", "policy"} <= {path.name for path in run.iterdir()}
    call(json.loads((run / "provenance.json").read_text())[-1]["command"], "two")
    again = tmp_path / "two/runs" / run.name
    assert (again / "config.json").read_text() == (run / "config.json").read_text()
    assert json.loads((again / "eval.json").read_text())["episodes"] == 2


def test_parts_that_no_other_process_can_import_are_named(tmp_path, capsys):
    made = make_ppo(AGENT, jaxsrl.make_env("CartPole-v1").spec(), NETWORK)
    config = dataclasses.replace(CONFIG, directory=str(tmp_path))
    jaxsrl.train(made._replace(**variant(made)), "CartPole-v1", config)
    printed = capsys.readouterr().out
    assert "its agent is made by jaxsrl.experiment:_composed_agent(...), which no other process can import" in printed
    assert "jaxsrl evaluate" not in printed
