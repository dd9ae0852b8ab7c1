"""DDPG, TD3 and SAC reach the known values of probe environments with continuous actions, and swing the pendulum up."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from agents.api import Mode, ReplayConfig
from agents.ddpg import DDPGConfig, make_ddpg
from agents.networks.config import NetworkConfig
from agents.networks.critics import make_critics
from agents.ops.action_scaling import continuous_actions
from agents.sac import SACConfig, make_sac
from agents.td3 import TD3Config, make_td3
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import (
    ConstantReward,
    DiscountedReward,
    EndsByClock,
    EndsByTask,
    PredictableReward,
    Probe,
    Step,
)
from experiments import ddpg_pendulum, sac_mujoco, sac_pendulum, td3_pendulum
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import change_run, run_config

DISCOUNT = 0.9
LOW, HIGH = -1.0, 3.0  # not symmetric: actions must be scaled and shifted
NETWORK = NetworkConfig(hidden_sizes=(32,), activation="relu")
COMMON = {
    # 15 gradient steps after each trajectory of 64 env steps.
    "replay": ReplayConfig(capacity=4_000, batch_size=64, min_size=640, gradient_steps_per_env_step=15 / 64),
    "discount": DISCOUNT,
    "tau": 0.05,
    "actor_learning_rate": 3e-3,
    "critic_learning_rate": 3e-3,
}
# The entropy is worth little, and less as it is learned that there is enough: values are those of rewards.
SOFT = {"init_temperature": 0.05, "temperature_learning_rate": 1e-2}
ALGORITHMS = {
    "ddpg": (make_ddpg, DDPGConfig(**COMMON)),
    # Its targets move at every second step only: as far in as many gradient steps.
    "td3": (make_td3, TD3Config(**{**COMMON, "tau": 0.1})),
    "sac": (make_sac, SACConfig(**COMMON, **SOFT)),
    "sac_three_steps_prioritized": (
        make_sac,
        SACConfig(
            **{**COMMON, "replay": dataclasses.replace(COMMON["replay"], priority_exponent=0.6)}, **SOFT, n_step=3
        ),
    ),
}


class NearAction(Probe):
    """One step, reward 1 - ((a - 2) / 2)^2. The best action is 2, V* = 1."""

    def step(self, action: np.ndarray) -> Step:
        return self._observed(), float(1.0 - ((action[0] - 2.0) / 2.0) ** 2), True, False, {}


class FollowObservation(Probe):
    """One step, observation o = -1 or 1, reward 1 - ((a - 1 - o) / 2)^2. The best action is 1 + o, V* = 1."""

    def _first(self) -> float:
        return self._sign()

    def step(self, action: np.ndarray) -> Step:
        return self._observed(), float(1.0 - ((action[0] - 1.0 - self._observation) / 2.0) ** 2), True, False, {}


# observation -> optimal value, as each probe's docstring derives it
VALUES = {
    ConstantReward: {0.0: 1.0},
    PredictableReward: {-1.0: -1.0, 1.0: 1.0},
    DiscountedReward: {0.0: DISCOUNT, 1.0: 1.0},
    NearAction: {0.0: 1.0},
    FollowObservation: {-1.0: 1.0, 1.0: 1.0},
    EndsByTask: {0.0: 1.0},
    EndsByClock: {0.0: 1.0 / (1.0 - DISCOUNT)},
}
BEST_ACTIONS = {NearAction: {0.0: 2.0}, FollowObservation: {-1.0: 0.0, 1.0: 2.0}}


def _bounded(probe: type[Probe]):
    """Makes the probe with continuous actions."""

    def make() -> Probe:
        env = probe()
        env.action_space = spaces.Box(LOW, HIGH, (1,), np.float32)
        return env

    return make


def _critics(spec, critic, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    critics = make_critics(NETWORK, spec, 1, num_critics=len(jax.tree.leaves(critic)[0]))
    return np.asarray(critics.values(critic, observations, continuous_actions(spec).to_unit(actions)))


@pytest.mark.slow
@pytest.mark.parametrize("probe", VALUES, ids=lambda probe: probe.__name__)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_values_and_actions_of_a_probe_are_learned(tmp_path, name, probe):
    config = run_config(
        plan="serial",
        directory=str(tmp_path),
        num_envs=8,
        rollout_length=8,
        total_env_steps=64 * 110,
        max_policy_lag=0,
        checkpoint_interval_updates=0,
    )
    make_agent, agent_config = ALGORITHMS[name]
    source = GymnasiumSource(_bounded(probe))
    spec = source.spec()
    agent = make_agent(dataclasses.replace(agent_config, total_updates=config.num_updates), spec, NETWORK)
    report = run(PLANS["serial"](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)
    observations = np.array(list(VALUES[probe]), np.float32)[:, None]
    rows = len(observations)
    keys, first = jax.random.split(jax.random.key(0), rows), np.ones(rows, bool)
    greedy, _, _ = agent.act(report.state.params, jnp.asarray(observations), (), first, keys, Mode.GREEDY)
    if probe in BEST_ACTIONS:
        np.testing.assert_allclose(greedy[:, 0], list(BEST_ACTIONS[probe].values()), atol=0.2)
        actions = [np.asarray(greedy)]
    else:  # what is done does not matter: every action has the value
        actions = [np.full((len(observations), 1), action, np.float32) for action in (LOW, 1.0, HIGH)]
    for action in actions:
        values = _critics(spec, report.state.extra.extra.critic, observations, action)
        expected = np.broadcast_to(list(VALUES[probe].values()), values.shape)
        np.testing.assert_allclose(values, expected, atol=0.1)


def _trained(module, directory, **changes):
    experiment = module.EXPERIMENT
    changed = change_run(experiment.run, directory=str(directory), name="run", **changes)
    dataclasses.replace(experiment, run=changed).train()
    return directory / "run"


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["serial", "single_learner_fine", "single_learner_coarse"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("module", [ddpg_pendulum, td3_pendulum, sac_pendulum], ids=lambda module: module.__name__)
def test_the_pendulum_is_swung_up(tmp_path, module, seed, plan):
    directory = _trained(module, tmp_path, seed=seed, plan=plan)
    assert json.loads((directory / "eval.json").read_text())["mean_return"] >= -200.0


@pytest.mark.slow
def test_soft_actor_critic_trains_on_a_task_of_mujoco(tmp_path):
    pytest.importorskip("mujoco")
    directory = _trained(sac_mujoco, tmp_path, total_env_steps=12_000, eval_final_episodes=1)
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    losses = [record[name] for record in records for name in record if name.startswith("loss/")]
    assert losses
    assert np.isfinite(losses).all()
    assert np.isfinite(json.loads((directory / "eval.json").read_text())["mean_return"])
