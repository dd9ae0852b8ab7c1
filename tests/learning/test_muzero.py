"""MuZero reaches the known values of the probes, balances CartPole and swings the pendulum up."""

import dataclasses
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig
from agents.muzero import MuZeroConfig, build_muzero, make_muzero
from agents.networks.config import NetworkConfig
from agents.ops.two_hot import two_hot_mean
from agents.search.gumbel import GumbelConfig
from agents.search.puct import PUCTConfig
from experiments import muzero_atari, muzero_cartpole, muzero_pendulum
from tests.learning.probe_runs import BEST_ACTIONS, DISCOUNT, VALUES, probe_source, trained
from tests.support.run_configs import change_run

PLAIN = MuZeroConfig(
    replay=ReplayConfig(
        capacity=4_096, batch_size=64, min_size=256, gradient_steps_per_env_step=0.25, priority_exponent=0.5
    ),
    gumbel=GumbelConfig(4),
    latent_size=16,
    value_limit=5,
    unroll_steps=3,
    n_step=2,
    discount=DISCOUNT,
    target_update_period=10,
    learning_rate=3e-3,
    total_updates=150,
)
KINDS = {
    "gumbel": PLAIN,
    "puct": dataclasses.replace(PLAIN, search="puct", gumbel=GumbelConfig(), puct=PUCTConfig(8)),
    "reanalysis": dataclasses.replace(PLAIN, reanalyze_fraction=0.5),
}
NETWORK = NetworkConfig(hidden_sizes=(32,), activation="relu", layer_norm=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VALUES)
def test_values_and_actions_of_a_probe_are_learned(tmp_path, kind, name):
    config = KINDS[kind]
    make_agent = partial(make_muzero, config, network=NETWORK)
    spec, agent, params = trained(
        tmp_path, probe_source(name), make_agent, rows=16, steps=8, updates=config.total_updates
    )
    observations = jnp.array(list(VALUES[name]))[:, None]
    net, rows = build_muzero(config, spec, NETWORK).net, len(VALUES[name])
    values = two_hot_mean(net.predict(params["network"], net.represent(params["network"], observations)).value)
    # The value is that of acting, which explores: of two actions the other one costs 2, and EndsByClock is worth 10.
    tolerance = 0.25 if name in BEST_ACTIONS else 0.5 if name == "EndsByClock" else 0.15
    np.testing.assert_allclose(values, list(VALUES[name].values()), atol=tolerance)
    if name in BEST_ACTIONS:
        keys, first = jax.random.split(jax.random.key(0), rows), np.ones(rows, bool)
        action, _, _ = agent.act(params, observations, (), first, keys, Mode.GREEDY)
        assert action.tolist() == list(BEST_ACTIONS[name].values())


def greedy_return(module, directory, **changes):
    experiment = module.EXPERIMENT
    run = change_run(experiment.run, directory=str(directory), name="run", checkpoint_interval_updates=0, **changes)
    dataclasses.replace(experiment, run=run).train()
    return json.loads((directory / "run" / "eval.json").read_text())["mean_return"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1])
def test_cartpole_is_balanced(tmp_path, seed):
    assert greedy_return(muzero_cartpole, tmp_path, seed=seed) >= 475.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_pendulum_is_swung_up(tmp_path):
    assert greedy_return(muzero_pendulum, tmp_path) >= -250.0


@pytest.mark.slow
def test_a_few_updates_of_the_atari_experiment_in_small(tmp_path):
    experiment = muzero_atari.EXPERIMENT
    replay = dataclasses.replace(
        experiment.agent.replay, capacity=1_024, batch_size=4, min_size=64, gradient_steps_per_env_step=0.0625
    )
    agent = dataclasses.replace(experiment.agent, replay=replay, gumbel=GumbelConfig(2), latent_size=8, value_limit=10)
    network = dataclasses.replace(experiment.network, torso="nature_cnn", hidden_sizes=(8,))
    run = change_run(
        experiment.run, directory=str(tmp_path), name="run", num_envs=4, total_env_steps=384, eval_final_episodes=0
    )
    report = dataclasses.replace(experiment, network=network, agent=agent, run=run).train(quiet=True)
    assert report.num_updates == 6
    records = [json.loads(line) for line in (report.directory / "metrics.jsonl").read_text().splitlines()]
    for name in ("reward", "value", "policy", "consistency"):
        assert np.isfinite(records[-1][f"loss/{name}"])
    assert records[-1]["replay/gradient_steps"] > 0
