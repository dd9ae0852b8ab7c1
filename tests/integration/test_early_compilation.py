"""The learner's update is compiled once, while the run starts, for the very arguments that it is called with."""

import subprocess
import sys

import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.learner.early_compilation import EarlyUpdate
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.compilations import compilations
from tests.support.run_configs import run_config

PLAIN = NetworkConfig(hidden_sizes=(8,))
RECURRENT = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=8)
PPO = PPOConfig(num_epochs=1, num_minibatches=1, total_updates=3)
DQN = DQNConfig(
    replay=ReplayConfig(capacity=256, batch_size=8, min_size=64, gradient_steps_per_env_step=0.125), total_updates=3
)


def train(directory, agent, env, plan, **changes):
    source = make_env(env)
    config = run_config(
        name="run",
        directory=str(directory),
        plan=plan,
        num_envs=8,
        pool_num_workers=2,
        rollout_length=8,
        checkpoint_interval_updates=0,
        **{"total_env_steps": 8 * 8 * 3, **changes},
    )
    spec = source.spec()
    run(PLANS[plan](config, Resources.detect()), agent(spec), source, config, spec=spec, quiet=True)


@pytest.mark.parametrize(
    ("agent", "plan", "env", "changes"),
    [
        (lambda spec: make_ppo(PPO, spec, PLAIN), "serial", {}, {}),
        (lambda spec: make_ppo(PPO, spec, RECURRENT), "serial", {}, {}),
        (lambda spec: make_ppo(PPO, spec, RECURRENT), "multiple_learners", {}, {"learner_num_devices": 2}),
        (lambda spec: make_ppo(PPO, spec, PLAIN), "serial", {"frame_stack": 2}, {}),
        (lambda spec: make_ppo(PPO, spec, PLAIN), "single_learner_coarse", {}, {}),
        (lambda spec: make_dqn(DQN, spec, PLAIN), "serial", {}, {"replay_memory": "device"}),
    ],
    ids=["mlp", "recurrent", "recurrent-two-devices", "frames", "pool", "replay"],
)
def test_an_update_is_compiled_once_in_its_thread(tmp_path, agent, plan, env, changes):
    with compilations() as programs:
        train(tmp_path, agent, EnvConfig("CartPole-v1", **env), plan, **changes)
    assert [thread for thread, program in programs if program == "jit(update)"] == ["compile update"]


def test_a_complete_run_compiles_no_update(tmp_path):
    setup = (lambda spec: make_ppo(PPO, spec, PLAIN)), EnvConfig("CartPole-v1"), "serial"
    train(tmp_path, *setup)
    with compilations() as programs:
        train(tmp_path, *setup, eval_final_episodes=1)
    assert "jit(update)" not in [program for _, program in programs]


def test_a_resumed_run_compiles_once_in_the_thread(tmp_path):
    setup = (lambda spec: make_ppo(PPO, spec, PLAIN)), EnvConfig("CartPole-v1"), "serial"
    train(tmp_path, *setup)
    with compilations() as programs:
        train(tmp_path, *setup, total_env_steps=8 * 8 * 5)
    assert [thread for thread, program in programs if program == "jit(update)"] == ["compile update"]


def test_the_first_call_raises_the_error_of_the_thread():
    def make():
        raise ValueError("too large")

    update = EarlyUpdate(make)
    update.join()
    with pytest.raises(ValueError, match="too large"):
        update(None, None)


SLOW = """
import os, signal, sys, threading, time
import jaxsrl.training.train as train
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, PoolConfig, RunConfig
from jaxsrl.experiment import cli
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.training.host_trainable import HostTrainable

jit_update, start, stopped = LearnerMesh.jit_update, HostTrainable.start, threading.Event()

def slow(self, *arguments):
    stopped.wait()  # for ever in the run that fails
    time.sleep(1)
    print("compiled", flush=True)
    return jit_update(self, *arguments)

def stop(self):
    learner = start(self)
    os.kill(os.getpid(), signal.SIGUSR1)
    stopped.set()
    return learner

def fail(*arguments):
    raise OSError("the disk is full")

LearnerMesh.jit_update = slow
if sys.argv.pop() == "signal":
    HostTrainable.start = stop
else:
    train.TrainingLoop._make_sinks = fail
run = RunConfig(plan="single_learner_fine", num_envs=4, rollout_length=8, total_env_steps=64, pool=PoolConfig(num_workers=1))
agent = PPOConfig(num_epochs=1, num_minibatches=1)
cli(Experiment(env=EnvConfig("CartPole-v1"), network=NetworkConfig(hidden_sizes=(8,)), agent=agent, run=run))
"""


@pytest.mark.parametrize(("event", "status", "words"), [("signal", 75, "compiled"), ("error", 1, "the disk is full")])
def test_a_process_ends_as_it_should_during_the_compilation(tmp_path, event, status, words):
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    arguments = ["--run.directory", str(tmp_path), "--run.name", "run", event]
    ended = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=300)
    assert ended.returncode == status, ended.stderr
    assert words in ended.stdout + ended.stderr
