"""What the docstrings of the team probes state follows from playing each of them in every possible way."""

import itertools

import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.envs.probes.team import TEAM_PROBES
from envpool_bridge.errors import UserError

DISCOUNT = 0.9
# probe -> {state: (optimal value, optimal joint actions)}, as the docstrings state them; None: all of them
ALL = frozenset(itertools.product((0, 1), (0, 1)))
KNOWN = {
    "TeamMatrix": {(1,): (1.0, {(0, 1)})},
    "UnequalTeamMatrix": {(1,): (1.0, {(1, 2)})},
    "SecretSigns": {(x, y): (1.0 + x * y, {(int(x > 0), int(y > 0))}) for x in (-1, 1) for y in (-1, 1)},
    "TwoStepTeam": {(1, 0, 0): (DISCOUNT, {(1, 0), (1, 1)}), (0, 1, 0): (0.25, ALL), (0, 0, 1): (1.0, {(1, 1)})},
    "TwoStepUnequal": {(1, 0, 0): (8 * DISCOUNT, {(1, 0), (1, 1)}), (0, 1, 0): (7.0, ALL), (0, 0, 1): (8.0, {(1, 1)})},
}
DISCRETE = [name for name in TEAM_PROBES if name != "JointTargets"]
CLIMBED = [name for name in DISCRETE if name != "TwoStepUnequal"]  # by policy gradients from the uniform policy


def joint_actions(env):
    return list(itertools.product(*(range(env.action_space(name).n) for name in env.possible_agents)))


def transitions(name, episodes=12):
    """{state: {joint action: (reward, next state or None)}} of episodes with every plan."""
    env, model = TEAM_PROBES[name](), {}
    plans = itertools.product(joint_actions(env), repeat=2)
    for seed, plan in itertools.product(range(episodes), plans):
        env.reset(seed=seed)
        for actions in plan:
            state = tuple(env.state())
            _, rewards, terminated, truncated, _ = env.step(dict(zip(env.possible_agents, actions, strict=True)))
            assert len(set(rewards.values())) == 1
            assert not any(truncated.values())
            over = all(terminated.values())
            outcome = (rewards["agent_0"], None if over else tuple(env.state()))
            assert model.setdefault(state, {}).setdefault(actions, outcome) == outcome
            if over:
                break
        else:
            pytest.fail(f"{name} does not end within {len(plan)} steps")
    return model


def action_values(model, state):
    """{joint action: its value, if the rest is played optimally}."""
    return {
        actions: reward + (0.0 if after is None else DISCOUNT * max(action_values(model, after).values()))
        for actions, (reward, after) in model[state].items()
    }


@pytest.mark.parametrize("name", DISCRETE)
def test_team_probes_declare_optimal_values_and_actions(name):
    model = transitions(name)
    assert set(model) == set(KNOWN[name])
    for state, (value, best) in KNOWN[name].items():
        values = action_values(model, state)
        assert max(values.values()) == pytest.approx(value)
        assert {actions for actions, found in values.items() if found == pytest.approx(value)} == best


@pytest.mark.parametrize("name", CLIMBED)
def test_team_matrix_prefers_the_optimum_for_uniform_partners(name):
    model = transitions(name)
    for state, (_, best) in KNOWN[name].items():
        values = {}
        for actions, (reward, after) in model[state].items():
            later = 0.0 if after is None else DISCOUNT * np.mean([outcome[0] for outcome in model[after].values()])
            values[actions] = reward + later
        for place in (0, 1):
            own = {
                action: np.mean([found for actions, found in values.items() if actions[place] == action])
                for action in {actions[place] for actions in values}
            }
            preferred = {action for action, found in own.items() if found == pytest.approx(max(own.values()))}
            assert preferred == {actions[place] for actions in best}


def test_two_step_unequal_misleads_sums_of_values():
    model = transitions("TwoStepUnequal")
    pairs = sorted(ALL)
    design = np.array([np.concatenate([np.eye(2)[a], np.eye(2)[b]]) for a, b in pairs])  # each action's own part
    room_b = np.array([model[0, 0, 1][pair][0] for pair in pairs])
    closest = design @ np.linalg.lstsq(design, room_b, rcond=None)[0]
    np.testing.assert_allclose(closest, [-1.5, 2.5, 2.5, 6.5])
    assert closest.max() < min(reward for reward, _ in model[0, 1, 0].values()) == 7.0
    assert room_b.mean() == 2.5


@pytest.mark.parametrize("name", ["TeamMatrix", "UnequalTeamMatrix"])
def test_team_matrix_has_a_second_equilibrium(name):
    (rewards,) = transitions(name).values()
    rewards = {actions: outcome[0] for actions, outcome in rewards.items()}
    stable = {
        (a, b)
        for a, b in rewards
        if all(rewards[a, b] > rewards[other] for other in rewards if (other[0] == a) != (other[1] == b))
    }
    assert sorted(rewards[actions] for actions in stable) == [0.5, 1.0]


def test_no_value_of_one_sign_alone_comes_closer_than_one():
    values = {state: value for state, (value, _) in KNOWN["SecretSigns"].items()}
    env = TEAM_PROBES["SecretSigns"]()
    observations, _ = env.reset(seed=3)
    assert [float(seen[0]) for seen in observations.values()] == list(env.state())
    for own in (-1, 1):
        found = [value for state, value in values.items() if state[0] == own]
        assert min(np.mean(np.square(np.array(found) - guess)) for guess in np.linspace(-3, 3, 601)) == pytest.approx(1)


def test_all_signs_come_and_follow_from_the_seed():
    env = TEAM_PROBES["SecretSigns"]()
    drawn = [tuple(env.reset(seed=seed) and env.state()) for seed in range(200)]
    assert {drawn.count(signs) > 20 for signs in itertools.product((-1.0, 1.0), repeat=2)} == {True}
    assert [tuple(env.reset(seed=seed) and env.state()) for seed in range(200)] == drawn


@pytest.mark.parametrize("name", TEAM_PROBES)
def test_team_probe_outputs_lie_in_their_spaces(name):
    env = TEAM_PROBES[name]()
    assert isinstance(env, ParallelEnv)
    observations, _ = env.reset(seed=0)
    for _ in range(2):
        assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())
        assert env.state_space.contains(env.state())
        if env.agents:
            observations = env.step({name: env.action_space(name).sample() for name in env.agents})[0]


@pytest.mark.parametrize("name", TEAM_PROBES)
def test_team_probe_has_a_row_for_each_agent(name):
    spec = EnvConfig(name, suite="probe", kwargs='{"global_state": true}').source().spec()
    probe = TEAM_PROBES[name]
    assert spec.rows_per_env == 2
    if name in DISCRETE:
        assert [agent.action.num_values for agent in spec.agents] == list(probe.num_actions)
    assert spec.critic_only == ("state",)
    assert spec.observation["state"].shape == (probe.state_size,)
    assert EnvConfig(name, suite="probe").source().spec().critic_only == ()


def test_joint_targets_has_its_optimum_on_target():
    env, grid = TEAM_PROBES["JointTargets"](), np.linspace(-1.0, 3.0, 9, dtype=np.float32)
    targets_seen = set()
    for seed, step in itertools.product(range(16), range(2)):

        def play(*errors, seed=seed, step=step):
            env.reset(seed=seed)
            for _ in range(step):
                env.step(dict.fromkeys(env.agents, np.zeros(1, np.float32)))
            targets = 1.0 + env.state()[:2]
            targets_seen.add((step, *targets))
            assert env.state()[2] == step
            actions = [np.array([target + error], np.float32) for target, error in zip(targets, errors, strict=True)]
            _, rewards, over, _, _ = env.step(dict(zip(env.possible_agents, actions, strict=True)))
            assert set(over.values()) == {step == 1}
            assert len(set(rewards.values())) == 1
            return rewards["agent_0"]

        paid = {errors: play(*errors) for errors in itertools.product(grid - 1.0, repeat=2)}
        assert max(paid, key=paid.__getitem__) == (0.0, 0.0)
        assert paid[0.0, 0.0] == pytest.approx(1.0)
        best = max(grid - 1.0, key=lambda error: paid[error, 1.0])
        assert best == -0.5
    assert len(targets_seen) == 8  # all pairs, at both steps


def test_team_probe_rejects_unknown_options():
    with pytest.raises(UserError, match="TeamMatrix of suite 'probe': unknown option 'players'"):
        EnvConfig("TeamMatrix", suite="probe", kwargs='{"players": 3}').source()
