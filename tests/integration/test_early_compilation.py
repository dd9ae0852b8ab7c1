"""The learner's update is compiled once, while the run starts, for the very arguments that it is called with."""

import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.learner.early_compilation import make_early
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.compilations import compilations
from tests.support.run_configs import run_config

PLAIN = NetworkConfig(hidden_sizes=(8,))
RECURRENT = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=8)
PPO = PPOConfig(num_epochs=1, num_minibatches=1, total_updates=3)
DQN = DQNConfig(replay=ReplayConfig(capacity=256, batch_size=8, min_size=64, samples_per_insert=1.0), total_updates=3)


def train(directory, agent, env, plan, **changes):
    source = make_env(env)
    config = run_config(
        name="run",
        directory=str(directory),
        plan=plan,
        num_envs=8,
        pool_num_workers=2,
        rollout_length=8,
        total_env_steps=8 * 8 * 3,
        checkpoint_interval_updates=0,
        **changes,
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
        (lambda spec: make_dqn(DQN, spec, PLAIN), "serial", {}, {"replay_memory": "device"}),
    ],
    ids=["mlp", "recurrent", "recurrent-two-devices", "frames", "replay"],
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


def test_the_first_call_raises_the_error_of_the_thread():
    def make():
        raise ValueError("too large")

    lifecycle = Lifecycle()
    update = make_early(make, lifecycle)
    with pytest.raises(ValueError, match="too large"):
        update(None, None)
    lifecycle.join()
    lifecycle.raise_error()
