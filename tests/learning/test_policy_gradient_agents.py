"""IMPALA, A2C and REINFORCE reach the known values of the probe environments, and CartPole's goal, through the real run."""

import dataclasses
import json
import time
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from agents.a2c import A2CConfig, make_a2c
from agents.impala import IMPALAConfig, make_impala
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig
from agents.ops.schedules import ScheduleConfig
from agents.reinforce import REINFORCEConfig, make_reinforce
from experiments import a2c_cartpole, impala_cartpole, reinforce_cartpole
from tests.learning.probe_runs import BEST_ACTIONS, DISCOUNT, VALUES, probe_source, trained
from tests.support.run_configs import change_run

NETWORK, UPDATES = NetworkConfig(hidden_sizes=(32,)), 400
COMMON = {
    "learning_rate": 1e-2,
    "learning_rate_schedule": ScheduleConfig("linear"),
    "discount": DISCOUNT,
    "entropy_coef": 0.0,
    "value_coef": 1.0,
    "optimizer": OptimizerConfig(max_grad_norm=10.0),
}
AGENTS = {
    "impala": (make_impala, IMPALAConfig(**COMMON)),
    "a2c": (make_a2c, A2CConfig(**COMMON)),
    "one_step_actor_critic": (make_a2c, A2CConfig(gae_lambda=0.0, **COMMON)),
    "reinforce": (make_reinforce, REINFORCEConfig(**COMMON)),
    "reinforce_bootstrap": (make_reinforce, REINFORCEConfig(bootstrap=True, **COMMON)),
}
# What the clock ended has the return it got: without a bootstrap, nothing follows.
WITHOUT_BOOTSTRAP = {"EndsByClock": {0.0: 1.0}}
FAST = {("impala", "EndsByClock"), ("a2c", "MatchObservation")}
CASES = [
    pytest.param(agent, probe, marks=() if (agent, probe) in FAST else pytest.mark.slow, id=f"{agent}-{probe}")
    for agent in AGENTS
    for probe in VALUES
]


@pytest.mark.parametrize(("name", "probe"), CASES)
def test_values_and_actions_of_a_probe_are_learned(tmp_path, name, probe):
    make, config = AGENTS[name]
    make_agent = partial(make, dataclasses.replace(config, total_updates=UPDATES), network=NETWORK)
    spec, _, params = trained(tmp_path, probe_source(probe), make_agent, rows=16, steps=8, updates=UPDATES)
    net = make_actor_critic(NETWORK, spec)
    expected = WITHOUT_BOOTSTRAP.get(probe, VALUES[probe]) if name == "reinforce" else VALUES[probe]
    observations = jnp.array(list(expected))[:, None]
    values = net.value(params, observations)
    np.testing.assert_allclose(values, list(expected.values()), atol=0.1)
    if probe in BEST_ACTIONS:
        actions = net.distribution.mode(net.policy(params, observations))
        assert actions.tolist() == list(BEST_ACTIONS[probe].values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("module", [impala_cartpole, a2c_cartpole, reinforce_cartpole])
def test_cartpole_is_solved(tmp_path, module, seed):
    experiment = module.EXPERIMENT
    run_config = change_run(experiment.run, directory=str(tmp_path), name="run", seed=seed, eval_final_episodes=50)
    start = time.monotonic()
    dataclasses.replace(experiment, run=run_config).train()
    report = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert report["episodes"] == 50
    assert report["mean_return"] >= 475.0, f"after {time.monotonic() - start:.0f} s"


@pytest.mark.slow
def test_replicas_that_push_at_their_own_pace_solve_cartpole(tmp_path):
    """A3C, with a learning rate for gradients of half as many rows."""
    experiment = a2c_cartpole.EXPERIMENT
    agent = dataclasses.replace(experiment.agent, learning_rate=2e-3)
    run_config = change_run(
        experiment.run,
        directory=str(tmp_path),
        name="run",
        plan="central",
        learner_gradients="asynchronous",
        learner_num_replicas=2,
        eval_final_episodes=50,
    )
    dataclasses.replace(experiment, agent=agent, run=run_config).train()
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["server/applied_gradients"] > 0
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["mean_return"] >= 475.0
