"""MAPPO, IPPO and COMA reach the known values of the team probes, through the real run."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsrl.cli.main
from agents.api import Mode
from agents.multi_agent.coma import COMAConfig, make_coma
from agents.networks.actor_critic import make_actor_critic
from agents.networks.coma import make_coma_networks, team_view
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.multi_policy import agent_indices, policy_spec
from envpool_bridge.spec.padding import cut
from experiments import coma_coordination
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent
from tests.learning import probe_runs
from tests.learning.probe_runs import DISCOUNT
from tests.support.run_configs import change_run

NETWORK = NetworkConfig(hidden_sizes=(32,))
PPO = PPOConfig(learning_rate=5e-3, discount=DISCOUNT, entropy_coef=0.0, optimizer=OptimizerConfig(max_grad_norm=10.0))
COMA = COMAConfig(learning_rate=1e-2, critic_learning_rate=1e-2, discount=DISCOUNT, entropy_coef=0.0)
# probe -> [(state, each agent's observation, optimal value, optimal joint action or None)], as the docstrings derive them
FIRST, SECOND = (1.0, 0.0), (0.0, 1.0)
KNOWN = {
    "TeamMatrix": [((1.0,), (FIRST, SECOND), 1.0, (0, 1))],
    "UnequalTeamMatrix": [((1.0,), (FIRST, SECOND), 1.0, (1, 2))],
    "SecretSigns": [
        ((x, y), ((x,), (y,)), 1.0 + x * y, (int(x > 0), int(y > 0))) for x in (-1.0, 1.0) for y in (-1.0, 1.0)
    ],
    "TwoStepTeam": [
        (place, (place + FIRST, place + SECOND), value, best)
        for place, value, best in [
            ((1.0, 0.0, 0.0), DISCOUNT, (1, None)),
            ((0.0, 0.0, 1.0), 1.0, (1, 1)),
        ]
    ],
}
EACH = {"agent_0": "first", "agent_1": "second"}


def observations(name, with_state):
    """Of every known state: rows environment by environment, as a run has them."""
    own = np.array([seen for _, seen, _, _ in KNOWN[name]], np.float32).reshape(2 * len(KNOWN[name]), -1)
    if not with_state:
        return own
    return {"observation": own, "state": np.repeat(np.array([known[0] for known in KNOWN[name]], np.float32), 2, 0)}


def values_and_actions(name):
    """Optimal values and actions of the same rows; -1 where any action is as good."""
    values = np.repeat([value for _, _, value, _ in KNOWN[name]], 2)
    actions = [-1 if action is None else action for known in KNOWN[name] for action in known[3]]
    return values, np.array(actions)


def trained(directory, name, make_agent, with_state, mapping=None, num_updates=150, **changes):
    """(spec, agent, parameters) after a run of 32 environments."""

    def mapped(spec):
        return make_multi_policy_agent(spec, PoliciesConfig(json.dumps(mapping or {})), make_agent)

    source = probe_runs.probe_source(name, json.dumps({"global_state": with_state}))
    sizes = {"rows": 64, "steps": 8, "updates": num_updates}
    return probe_runs.trained(directory, source, mapped, **sizes, **changes)


def greedy(agent, params, seen):
    rows = len(jax.tree.leaves(seen)[0])
    keys, first = jax.random.split(jax.random.key(0), rows), jnp.ones(rows, bool)
    return np.asarray(agent.act(params, seen, agent.initial_agent_state(rows), first, keys, Mode.GREEDY)[0])


def assert_best(name, agent, params, seen):
    actions, best = greedy(agent, params, seen), values_and_actions(name)[1]
    np.testing.assert_array_equal(np.where(best < 0, -1, actions), best)


def ppo(spec):
    return make_ppo(PPO, spec, NETWORK)


SLOW = pytest.mark.slow


@SLOW
@pytest.mark.parametrize("name", ["TeamMatrix", "SecretSigns", "TwoStepTeam"])
def test_mappo_with_one_policy_for_all_learns_values_and_actions(tmp_path, name):
    spec, agent, params = trained(tmp_path, name, ppo, with_state=True)
    seen = observations(name, True)
    assert_best(name, agent, params, seen)
    values = make_actor_critic(NETWORK, spec).value(params, seen)
    np.testing.assert_allclose(values, values_and_actions(name)[0], atol=0.1)


@SLOW
@pytest.mark.parametrize("name", ["TeamMatrix", "UnequalTeamMatrix"])
def test_mappo_with_separate_policies_learns_team(tmp_path, name):
    spec, agent, params = trained(tmp_path, name, ppo, with_state=True, mapping=EACH)
    seen = observations(name, True)
    assert_best(name, agent, params, seen)
    for policy, places in agent_indices(spec, EACH).items():
        own = policy_spec(spec, places)
        rows = cut(own.observation, jax.tree.map(lambda leaf, places=places: leaf[list(places)], seen), 1)
        values = make_actor_critic(NETWORK, own).value(params[policy], rows)
        np.testing.assert_allclose(values, 1.0, atol=0.1)


@SLOW
@pytest.mark.parametrize("name", ["TeamMatrix", "TwoStepTeam"])
def test_ippo_learns_fully_observed_team(tmp_path, name):
    spec, agent, params = trained(tmp_path, name, ppo, with_state=False)
    seen = observations(name, False)
    assert_best(name, agent, params, seen)
    values = make_actor_critic(NETWORK, spec).value(params, seen)
    np.testing.assert_allclose(values, values_and_actions(name)[0], atol=0.1)


@SLOW
def test_ippo_acts_optimally_on_secret_signs(tmp_path):
    spec, agent, params = trained(tmp_path, "SecretSigns", ppo, with_state=False, num_updates=250)
    seen = observations("SecretSigns", False)
    assert_best("SecretSigns", agent, params, seen)
    values = make_actor_critic(NETWORK, spec).value(params, seen)
    np.testing.assert_allclose(values, 1.0, atol=0.3)  # what an agent's own sign says of the return
    assert np.mean(np.square(values - values_and_actions("SecretSigns")[0])) >= 1.0 - 1e-6


@pytest.mark.parametrize(
    ("name", "with_state"),
    [
        pytest.param("TeamMatrix", False, marks=SLOW),
        pytest.param("SecretSigns", True, marks=SLOW),
        pytest.param("SecretSigns", False, marks=SLOW),
        pytest.param("TwoStepTeam", True, marks=SLOW),
    ],
)
def test_coma_learns_values_and_actions(tmp_path, name, with_state):
    spec, agent, params = trained(tmp_path, name, lambda own: make_coma(COMA, own, NETWORK), with_state)
    seen = observations(name, with_state)
    assert_best(name, agent, params, seen)
    net, rows = make_coma_networks(NETWORK, spec), jnp.ones(len(values_and_actions(name)[0]), bool)
    logits, _ = net.step(params, seen, (), rows)
    view = team_view(spec, jax.tree.map(lambda leaf: leaf[None], seen), greedy(agent, params, seen)[None], rows[None])
    action_values = net.action_values(params["critic"], view)[0]
    values = jnp.sum(jax.nn.softmax(logits) * action_values, -1)
    np.testing.assert_allclose(values, values_and_actions(name)[0], atol=0.1)
    if name == "TwoStepTeam":  # at the start, what agent_1 does changes nothing, and COMA says so
        np.testing.assert_allclose(action_values[1], DISCOUNT, atol=0.1)


@SLOW
def test_coma_on_two_replicas_learns_like_serial(tmp_path):
    def make(spec):
        return make_coma(COMA, spec, NETWORK)

    _, _, one = trained(tmp_path / "serial", "TwoStepTeam", make, with_state=True, num_updates=4)
    server = {"plan": "central", "learner_num_replicas": 2}
    _, _, other = trained(tmp_path / "central", "TwoStepTeam", make, with_state=True, num_updates=4, **server)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@SLOW
def test_coma_experiment_reaches_value_of_the_game(tmp_path, capsys):
    experiment = coma_coordination.EXPERIMENT
    config = change_run(experiment.run, directory=str(tmp_path), name="run", eval_final_episodes=0)
    dataclasses.replace(experiment, run=config).train()
    capsys.readouterr()
    jaxsrl.cli.main.main(["evaluate", str(tmp_path / "run"), "--episodes", "8", "--json"])
    assert json.loads(capsys.readouterr().out)["agent_returns"] == {"agent_0": 1.0, "agent_1": 1.0}
