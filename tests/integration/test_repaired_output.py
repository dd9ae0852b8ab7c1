"""Output that is not as declared: doors of vector environments repair and count it, training rejects it unless told."""

import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import jaxsrl
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.compat import envpool
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.vector_env import PoolVectorEnv, make_vec
from tests.support.run_configs import run_config

NAME = "Loose-v0"


class Loose(gymnasium.Env):
    """Environment whose observation is a list, at every reset and at every step of its episodes of 4 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return [0.0, 0.5], {}

    def step(self, action):
        self.count += 1
        return [0.25, 0.5], float(action), self.count == 4, False, {}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(
        gymnasium.registry, NAME, EnvSpec(NAME, entry_point=lambda **_: Loose(), disable_env_checker=True)
    )


def make_sb3(**options):
    pytest.importorskip("stable_baselines3")
    from envpool_bridge.compat.sb3 import PoolVecEnv

    return PoolVecEnv([Loose] * 2, num_workers=1, **options)


DOORS = {
    "PoolVectorEnv": partial(PoolVectorEnv, Loose, 2, num_workers=1),
    "make_vec": lambda **options: make_vec(NAME, 2, vector_kwargs={"num_workers": 1, **options}),
    "SB3": make_sb3,
}


def repaired(infos):
    return [info["repaired"] for info in infos] if isinstance(infos, list) else infos["repaired"].tolist()


@pytest.mark.parametrize("door", DOORS)
def test_doors_of_vector_environments_are_lenient_by_default(door):
    env = DOORS[door]()
    try:
        env.reset()
        for number in range(2, 4):
            observations, *_, infos = env.step(np.zeros(2, int))
            np.testing.assert_array_equal(observations, np.array([[0.25, 0.5]] * 2, np.float32), strict=True)
            assert repaired(infos) == [number, number]  # since the environment was made
    finally:
        env.close()


@pytest.mark.parametrize("door", DOORS)
def test_doors_of_vector_environments_may_be_strict(door):
    env = DOORS[door](strict=True)
    try:
        with pytest.raises(BadEnvOutputError, match=r"bad observation.*strict=False"):
            env.reset()
    finally:
        env.close()


def test_the_interface_of_envpool_is_lenient():
    env = envpool.make(NAME, num_envs=2)
    assert env.reset()[1]["repaired"].tolist() == [1, 1]
    env.close()


def train(tmp_path, **choice):
    run = run_config(
        name="run",
        directory=str(tmp_path),
        plan="serial",
        num_envs=2,
        rollout_length=8,
        total_env_steps=3 * 2 * 8,
        eval_final_episodes=1,
    )
    agent, network = PPOConfig(num_minibatches=1, num_epochs=1), NetworkConfig(hidden_sizes=(8,))
    return jaxsrl.Experiment(env=EnvConfig(NAME, **choice), network=network, agent=agent, run=run).train()


def test_training_is_strict_by_default(tmp_path):
    with pytest.raises(BadEnvOutputError, match=r"bad observation.*--env.no-strict"):
        train(tmp_path)


def test_the_last_lines_of_a_run_count_repairs(tmp_path, capsys):
    report = train(tmp_path, strict=False)
    # 2 first resets and 48 steps; the observation of a step that terminates is that of the reset after it.
    assert report.repaired_outputs == 2 + 48
    # The first reset, and 4 steps of the evaluation.
    counts = re.findall(
        r"(\d+) outputs of environments were not as declared, and were repaired", capsys.readouterr().out
    )
    assert counts == ["50", "5"]
