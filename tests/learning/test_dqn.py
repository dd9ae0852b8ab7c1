"""DQN in its kinds and R2D2 reach the known values of the probes, name a cue that must be remembered, and balance CartPole."""

import dataclasses
import json
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, build_dqn, make_dqn
from agents.networks.config import NetworkConfig
from agents.ops.schedules import ScheduleConfig
from agents.r2d2 import make_r2d2
from experiments import dqn_cartpole, r2d2_remember_cue, rainbow_cartpole
from jaxsrl.evaluation.evaluate import evaluate
from tests.learning.probe_runs import BEST_ACTIONS, DISCOUNT, VALUES, probe_source, trained
from tests.support.run_configs import change_run

PLAIN = DQNConfig(
    replay=ReplayConfig(
        capacity=4_096, batch_size=64, min_size=256, gradient_steps_per_env_step=0.25, priority_exponent=0.5
    ),
    epsilon_start=1.0,
    epsilon_end=0.3,
    learning_rate=1e-2,
    learning_rate_schedule=ScheduleConfig("linear"),
    discount=DISCOUNT,
    target_update_period=10,
    double=True,
    total_updates=100,
)
KINDS = {
    "double": PLAIN,
    "dueling n-step": dataclasses.replace(PLAIN, dueling=True, n_step=3, initial_priority="actor"),
    "c51": dataclasses.replace(PLAIN, value_type="c51", v_min=-2.0, v_max=12.0, num_atoms=57),
    "quantile": dataclasses.replace(PLAIN, value_type="quantile", num_atoms=8),
    "noisy": dataclasses.replace(PLAIN, noisy=True),
}
NETWORK = NetworkConfig(hidden_sizes=(32,))
FAST = [("double", "MatchObservation")]
SLOW = [(kind, name) for kind in KINDS for name in VALUES if (kind, name) not in FAST]


def action_values(config, spec, network, params, observations):
    dqn = build_dqn(config, spec, network)
    return dqn.values.mean(dqn.net.outputs(params["network"], observations, None))


@pytest.mark.parametrize(("kind", "name"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_values_and_actions_of_a_probe_are_learned(tmp_path, kind, name):
    config = KINDS[kind]
    make_agent = partial(make_dqn, config, network=NETWORK)
    spec, _, params = trained(tmp_path, probe_source(name), make_agent, rows=16, steps=8, updates=config.total_updates)
    observations = jnp.array(list(VALUES[name]))[:, None]
    values = np.asarray(action_values(config, spec, NETWORK, params, observations))
    np.testing.assert_allclose(values.max(-1), list(VALUES[name].values()), atol=0.1)
    if name in BEST_ACTIONS:
        best = list(BEST_ACTIONS[name].values())
        assert values.argmax(-1).tolist() == best
        # The other action is known too: it is worth -1.
        np.testing.assert_allclose(values.min(-1), -1.0, atol=0.1)


def cue_named(directory, plan):
    experiment = r2d2_remember_cue.EXPERIMENT
    config, run = experiment.agent, experiment.run
    updates = run.num_updates
    agent_config = dataclasses.replace(config, total_updates=updates)
    source = probe_source("RememberCue")
    make_agent = partial(make_r2d2, agent_config, network=experiment.network)
    spec, agent, params = trained(
        directory, source, make_agent, rows=run.num_envs, steps=run.rollout_length, updates=updates, plan=plan
    )
    return evaluate(agent, params, source, episodes=100, seed=1).mean_return, agent_config, spec, params


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["serial", "single_learner_fine", "single_learner_coarse"])
def test_r2d2_learns_the_cue_and_its_value(tmp_path, plan):
    mean_return, config, spec, params = cue_named(tmp_path, plan)
    assert mean_return == 1.0
    dqn = build_dqn(config, spec, r2d2_remember_cue.EXPERIMENT.network)
    observation = np.zeros((4, 2, 1), np.float32)
    observation[0, :, 0] = (-1.0, 1.0)
    is_first = np.arange(4)[:, None] == np.zeros((1, 2), int)
    outputs, _ = dqn.net.unroll(params["network"], observation, dqn.net.initial_state(2), is_first, None)
    # Outputs are rescaled values: h(v) with epsilon 1e-3.
    best = np.asarray(dqn.values.mean(outputs)).max(-1)
    worth = DISCOUNT ** np.array([3, 2, 1, 0])[:, None]
    rescaled = np.sqrt(worth + 1) - 1 + 1e-3 * worth
    np.testing.assert_allclose(best, np.repeat(rescaled, 2, 1), atol=0.1)


@pytest.mark.slow
def test_without_its_memory_the_cue_cannot_be_named(tmp_path):
    config = dataclasses.replace(PLAIN, total_updates=60)
    source = probe_source("RememberCue")
    _, agent, params = trained(
        tmp_path, source, partial(make_dqn, config, network=NETWORK), rows=16, steps=8, updates=60
    )
    # A fair coin over 100 episodes, or always the same answer: five standard deviations.
    assert abs(evaluate(agent, params, source, episodes=100, seed=1).mean_return) < 0.5


CARTPOLE = {
    "dqn": (dqn_cartpole, {}),
    "c51": (dqn_cartpole, {"value_type": "c51"}),
    "quantile": (dqn_cartpole, {"value_type": "quantile"}),
    "noisy": (dqn_cartpole, {"noisy": True}),  # beside epsilon; alone it does not suffice (docs/algorithms/dqn.md)
    "rainbow": (rainbow_cartpole, {}),
}


def greedy_return(directory, kind, **changes):
    module, options = CARTPOLE[kind]
    experiment = module.EXPERIMENT
    run = change_run(experiment.run, directory=str(directory), name="run", checkpoint_interval_updates=0, **changes)
    dataclasses.replace(experiment, run=run, agent=dataclasses.replace(experiment.agent, **options)).train()
    return json.loads((directory / "run" / "eval.json").read_text())["mean_return"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CARTPOLE)
def test_every_kind_balances_cartpole(tmp_path, kind):
    assert greedy_return(tmp_path, kind, plan="serial", max_policy_lag=0) >= 475.0


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["single_learner_fine", "single_learner_coarse"])
def test_cartpole_is_balanced_under_every_plan(tmp_path, plan):
    assert greedy_return(tmp_path, "dqn", plan=plan) >= 475.0
