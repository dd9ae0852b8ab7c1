"""PPG reaches the known values of the probe environments, and CartPole's goal, through the real run."""

import dataclasses
import json
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.networks.phasic import make_phasic
from agents.ops.optimizers import OptimizerConfig
from agents.ppg import PPGConfig, make_ppg
from experiments import ppg_cartpole
from tests.learning.probe_runs import BEST_ACTIONS, DISCOUNT, VALUES, probe_source, trained
from tests.support.run_configs import change_run

ROWS, STEPS = 16, 16
NETWORK = NetworkConfig(hidden_sizes=(32,))
FAST = {"MatchObservation"}
CONFIG = PPGConfig(
    learning_rate=5e-3, auxiliary_learning_rate=5e-3, discount=DISCOUNT, entropy_coef=0.0,
    optimizer=OptimizerConfig(max_grad_norm=10.0),
    num_epochs=4, num_minibatches=4, num_policy_phases=10, num_auxiliary_epochs=4, num_auxiliary_minibatches=2,
    rollout_length=STEPS, num_rows=ROWS,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in VALUES]
)
def test_ppg_learns_probe_with_both_values(tmp_path, name):
    make_agent = partial(make_ppg, CONFIG, network=NETWORK)
    spec, _, params = trained(tmp_path, probe_source(name), make_agent, rows=ROWS, steps=STEPS, updates=150)
    phasic = make_phasic(NETWORK, spec)
    outputs = phasic.outputs(params, jnp.array(list(VALUES[name]))[:, None])
    np.testing.assert_allclose(outputs.value, list(VALUES[name].values()), atol=0.1)
    # Of targets that were computed while the values were still moving.
    np.testing.assert_allclose(outputs.auxiliary, list(VALUES[name].values()), rtol=0.1, atol=0.15)
    if name in BEST_ACTIONS:
        actions = phasic.net.distribution.mode(outputs.policy)
        assert actions.tolist() == list(BEST_ACTIONS[name].values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_cartpole_is_solved(tmp_path, seed):
    experiment = ppg_cartpole.EXPERIMENT
    changed = change_run(experiment.run, directory=str(tmp_path), name="run", seed=seed, eval_final_episodes=50)
    dataclasses.replace(experiment, run=changed).train()
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["mean_return"] >= 475.0
