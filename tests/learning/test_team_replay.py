"""QMIX, VDN and MADDPG reach the known values of the team probes, through the real run and under several plans."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig
from agents.multi_agent.maddpg import MADDPGConfig, make_maddpg
from agents.multi_agent.qmix import QMIXConfig, make_qmix
from agents.multi_agent.vdn import VDNConfig, make_vdn
from agents.networks.config import NetworkConfig
from agents.networks.maddpg import joint_actions, make_maddpg_networks
from agents.networks.mixer import make_monotone_mixer, make_sum_mixer
from agents.networks.team_actions import make_team_actions
from agents.networks.team_values import make_team_values
from agents.ops.optimizers import OptimizerConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent
from jaxsrl.replay.state import inner_state
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

pytestmark = pytest.mark.slow

DISCOUNT = 0.9
NETWORK = NetworkConfig(hidden_sizes=(32,))
# 15 gradient steps on 64 windows after each trajectory of 512 rows' steps.
REPLAY = ReplayConfig(capacity=8_192, batch_size=64, min_size=1_024, gradient_steps_per_env_step=15 / 512)
COMMON = {
    "learning_rate": 3e-3,
    "discount": DISCOUNT,
    "target_update_period": 20,
    "epsilon_start": 1.0,
    "epsilon_end": 1.0,  # as the paper explores its two-step game
    "replay": REPLAY,
}
CONTINUOUS = MADDPGConfig(
    replay=REPLAY,
    discount=DISCOUNT,
    tau=0.05,
    actor_learning_rate=3e-3,
    critic_learning_rate=3e-3,
    exploration_noise=0.3,
    optimizer=OptimizerConfig(max_grad_norm=10.0),
)
CASES = ["serial", "single_learner_fine", "single_learner_coarse"]
FIRST, SECOND = (1.0, 0.0), (0.0, 1.0)
START, ROOM_A, ROOM_B = np.eye(3).tolist()


def trained(directory, name, make_agent, num_updates, plan="serial", with_state=True):
    """(spec, agent, learner state) after a run of 32 environments."""
    source = EnvConfig(name, suite="probe", kwargs=json.dumps({"global_state": with_state})).source()
    spec = source.spec()
    agent = make_multi_policy_agent(spec, PoliciesConfig(), make_agent)
    config = run_config(
        plan=plan,
        directory=str(directory),
        num_envs=64,
        rollout_length=8,
        total_env_steps=64 * 8 * num_updates,
        checkpoint_interval_updates=0,
    )
    report = run(PLANS[plan](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)
    return spec, agent, inner_state(report.state)


def greedy(agent, params, seen):
    rows = len(jax.tree.leaves(seen)[0])
    keys, first = jax.random.split(jax.random.key(0), rows), jnp.ones(rows, bool)
    return np.asarray(agent.act(params, seen, agent.initial_agent_state(rows), first, keys, Mode.GREEDY)[0])


def rooms(with_state=True):
    """What both agents see at the three places of a two-step game, environment by environment."""
    places = [START, ROOM_A, ROOM_B]
    own = np.array([[*place, *who] for place in places for who in (FIRST, SECOND)], np.float32)
    return {"observation": own, "state": np.repeat(np.array(places, np.float32), 2, 0)} if with_state else own


def team_values(spec, mixer, state, seen, network=NETWORK):
    """Of every pair of two actions in each of E environments, [E, 2, 2]."""
    net = make_team_values(network, spec, mixer, shared=True)
    params = {"agents": state.params["agents"], "mixer": state.extra.mixer}
    one_step = jax.tree.map(lambda leaf: leaf[None], seen)
    rows = len(jax.tree.leaves(seen)[0])
    present = jnp.ones((1, rows), bool)
    values, _ = net.unroll(params, one_step, net.initial_state(rows), present)
    pairs = [
        [
            net.mixed(params, values, np.tile(np.array([a, b], np.int32), rows // 2)[None], one_step, present)[0]
            for b in (0, 1)
        ]
        for a in (0, 1)
    ]
    return np.moveaxis(np.array(pairs), -1, 0)


@pytest.mark.parametrize("plan", CASES)
def test_qmix_learns_the_two_step_game_of_its_paper_to_the_value(tmp_path, plan):
    def make(spec):
        return make_qmix(QMIXConfig(**COMMON), spec, NETWORK)

    spec, agent, state = trained(tmp_path, "TwoStepUnequal", make, 120, plan)
    actions = greedy(agent, state.params, rooms())
    assert (actions[0], *actions[4:]) == (1, 1, 1)
    values = team_values(spec, make_monotone_mixer(NETWORK, spec, 32), state, rooms())
    g = DISCOUNT
    expected = [[[7 * g] * 2, [8 * g] * 2], [[7.0] * 2] * 2, [[0.0, 1.0], [1.0, 8.0]]]
    np.testing.assert_allclose(values, expected, atol=0.25)


@pytest.mark.parametrize("plan", CASES)
def test_vdn_chooses_worse_room_of_two_step_team(tmp_path, plan):
    def make(spec):
        return make_vdn(VDNConfig(**COMMON), spec, NETWORK)

    spec, agent, state = trained(tmp_path, "TwoStepUnequal", make, 120, plan)
    assert greedy(agent, state.params, rooms())[0] == 0
    values = team_values(spec, make_sum_mixer(), state, rooms())
    # The closest sums; what has been drawn is only nearly even.
    np.testing.assert_allclose(values[1], 7.0, atol=0.25)
    np.testing.assert_allclose(values[2], [[-1.5, 2.5], [2.5, 6.5]], atol=0.5)


@pytest.mark.parametrize("with_state", [True, False], ids=["state", "observations"])
def test_qmix_learns_two_step_team(tmp_path, with_state):
    def make(spec):
        return make_qmix(QMIXConfig(**COMMON), spec, NETWORK)

    spec, agent, state = trained(tmp_path, "TwoStepTeam", make, 120, with_state=with_state)
    seen = rooms(with_state)
    actions = greedy(agent, state.params, seen)
    assert (actions[0], *actions[4:]) == (1, 1, 1)
    values = team_values(spec, make_monotone_mixer(NETWORK, spec, 32), state, seen)
    np.testing.assert_allclose(values.max((1, 2)), [DISCOUNT, 0.25, 1.0], atol=0.1)


def test_qmix_with_memory_learns_from_whole_episodes_by_priority(tmp_path):
    network = NetworkConfig(hidden_sizes=(32,), core="gru", core_size=16)
    replay = ReplayConfig(8_192, 64, 1_024, gradient_steps_per_env_step=15 / 512, priority_exponent=0.6)
    config = QMIXConfig(
        **(COMMON | {"replay": replay}), sequence_length=2, window_start="episode", importance_sampling_exponent=1.0
    )
    spec, agent, state = trained(tmp_path, "TwoStepUnequal", lambda own: make_qmix(config, own, network), 120)
    starts = jax.tree.map(lambda leaf: leaf[:2], rooms())
    values = team_values(spec, make_monotone_mixer(network, spec, 32), state, starts, network)
    assert greedy(agent, state.params, starts)[0] == 1
    np.testing.assert_allclose(values, [[[7 * DISCOUNT] * 2, [8 * DISCOUNT] * 2]], atol=0.4)


def test_qmix_and_vdn_learn_secret_signs(tmp_path):
    signs = [(x, y) for x in (-1.0, 1.0) for y in (-1.0, 1.0)]
    own = np.array([[sign] for pair in signs for sign in pair], np.float32)
    seen = {"observation": own, "state": np.repeat(np.array(signs, np.float32), 2, 0)}
    best = (own[:, 0] > 0).astype(int)
    spec, agent, state = trained(
        tmp_path / "qmix", "SecretSigns", lambda own: make_qmix(QMIXConfig(**COMMON), own, NETWORK), 150
    )
    np.testing.assert_array_equal(greedy(agent, state.params, seen), best)
    values = team_values(spec, make_monotone_mixer(NETWORK, spec, 32), state, seen)
    np.testing.assert_allclose(values.max((1, 2)), [1.0 + x * y for x, y in signs], atol=0.15)
    _, agent, state = trained(
        tmp_path / "vdn", "SecretSigns", lambda own: make_vdn(VDNConfig(**COMMON), own, NETWORK), 100
    )
    np.testing.assert_array_equal(greedy(agent, state.params, seen), best)


@pytest.mark.parametrize("plan", CASES)
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_maddpg_learns_continuous_team(tmp_path, plan, shared):
    if shared and plan != "serial":
        pytest.skip("the plan does not know of it")
    config = MADDPGConfig(**{**vars(CONTINUOUS), "share_parameters": shared})
    network = NetworkConfig(hidden_sizes=(32, 32), activation="relu")
    spec, agent, state = trained(tmp_path, "JointTargets", lambda own: make_maddpg(config, own, network), 150, plan)
    known = [(x, y, step) for x in (-1.0, 1.0) for y in (-1.0, 1.0) for step in (0.0, 1.0)]
    own = np.array([(sign, step) for x, y, step in known for sign in (x, y)], np.float32)
    seen = {"observation": own, "state": np.repeat(np.array(known, np.float32), 2, 0)}
    actions = greedy(agent, state.params, seen)
    np.testing.assert_allclose(actions[:, 0], 1.0 + own[:, 0], atol=0.2)
    encoded = make_team_actions(spec, 0.0, 1.0).encode(actions)
    net = make_maddpg_networks(network, spec, 1, shared=shared)
    present = jnp.ones(len(own), bool)
    values = net.value(state.extra.critic, seen, present, joint_actions(2, encoded, present))
    np.testing.assert_allclose(values, np.where(own[:, 1] == 0, 1.0 + DISCOUNT, 1.0), atol=0.2)


def test_maddpg_with_discrete_actions_learns_two_step_team(tmp_path):
    _, agent, state = trained(tmp_path, "TwoStepTeam", lambda own: make_maddpg(CONTINUOUS, own, NETWORK), 150)
    actions = greedy(agent, state.params, rooms())
    assert (actions[0], *actions[4:]) == (1, 1, 1)
