"""The optimal values that the probes' docstrings state follow from playing each probe in every possible way."""

import itertools

import pytest

from envpool_bridge.envs.probes.single_agent import PROBES

DISCOUNT = 0.9
HORIZON = 200  # steps after which a discounted reward no longer counts: 0.9 ** 200 < 1e-9
# probe -> {observation: optimal value}, for discount g as the docstrings state them
VALUES = {
    "ConstantReward": lambda g: {0.0: 1.0},
    "PredictableReward": lambda g: {-1.0: -1.0, 1.0: 1.0},
    "DiscountedReward": lambda g: {0.0: g, 1.0: 1.0},
    "ActionReward": lambda g: {0.0: 1.0},
    "MatchObservation": lambda g: {-1.0: 1.0, 1.0: 1.0},
    "EndsByTask": lambda g: {0.0: 1.0},
    "EndsByClock": lambda g: {0.0: 1.0 / (1.0 - g)},
}
BEST_ACTIONS = {"ActionReward": {0.0: {1}}, "MatchObservation": {-1.0: {0}, 1.0: {1}}}


def transitions(name, episodes=40):
    """{(observation, action): {(reward, next observation, terminated, truncated)}} seen in episodes with every plan."""
    seen = {}
    env = PROBES[name]()
    for seed, plan in itertools.product(range(episodes), itertools.product(range(env.num_actions), repeat=2)):
        (observation,) = env.reset(seed=seed)[0]
        for action in plan:
            (following,), reward, terminated, truncated, _ = env.step(action)
            outcome = (reward, float(following), terminated, truncated)
            seen.setdefault((float(observation), action), set()).add(outcome)
            observation = following
            if terminated or truncated:
                break
        else:
            pytest.fail(f"{name} does not end within {len(plan)} steps")
    return seen


def iterate(model, discount):
    """Values after HORIZON rounds of the Bellman equation; the value goes on past a truncation, not past a termination."""
    values = {observation: 0.0 for observation, _ in model}
    for _ in range(HORIZON):
        values = {
            observation: max(action_value(model, values, discount, *key) for key in model if key[0] == observation)
            for observation in values
        }
    return values


def action_value(model, values, discount, observation, action):
    ((reward, following, terminated, _),) = model[observation, action]  # one outcome: the probes are deterministic
    return reward if terminated else reward + discount * values[following]


@pytest.mark.parametrize("discount", [DISCOUNT, 0.5, 0.0])
@pytest.mark.parametrize("name", VALUES)
def test_the_declared_optimal_values_are_those_of_optimal_play(name, discount):
    assert iterate(transitions(name), discount) == pytest.approx(VALUES[name](discount), abs=1e-6)


@pytest.mark.parametrize("name", VALUES)
def test_exactly_the_declared_actions_are_optimal(name):
    model = transitions(name)
    values = iterate(model, DISCOUNT)
    best = {observation: set() for observation in values}
    for observation, action in model:
        if action_value(model, values, DISCOUNT, observation, action) == pytest.approx(values[observation]):
            best[observation].add(action)
    assert best == BEST_ACTIONS.get(name, {observation: {0} for observation in values})


@pytest.mark.parametrize("name", ["PredictableReward", "MatchObservation"])
def test_both_signs_come_equally_often_and_follow_from_the_seed(name):
    env = PROBES[name]()
    first = [float(env.reset(seed=seed)[0][0]) for seed in range(400)]
    assert set(first) == {-1.0, 1.0}
    assert 140 < first.count(1.0) < 260  # six standard deviations of a fair coin
    assert [float(env.reset(seed=seed)[0][0]) for seed in range(400)] == first


@pytest.mark.parametrize("name", VALUES)
def test_every_episode_ends_and_only_the_clock_truncates(name):
    ends = [outcome[2:] for outcomes in transitions(name).values() for outcome in outcomes if any(outcome[2:])]
    assert set(ends) == {(False, True) if name == "EndsByClock" else (True, False)}


@pytest.mark.parametrize("name", VALUES)
def test_observations_and_actions_are_those_of_the_spaces(name):
    env = PROBES[name]()
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert env.action_space.n == (2 if name in BEST_ACTIONS else 1)
    assert env.observation_space.contains(env.step(0)[0])


def test_every_probe_is_checked():
    assert set(PROBES) == {*VALUES, "RememberCue", "TossedCoin"}


def played(actions, seed=0):
    """(observations, rewards, terminated) of one episode of RememberCue."""
    env = PROBES["RememberCue"]()
    seen, rewards, ended = [float(env.reset(seed=seed)[0][0])], [], []
    for action in actions:
        (observation,), reward, terminated, truncated, _ = env.step(action)
        seen.append(float(observation))
        rewards.append(reward)
        ended.append((terminated, truncated))
    return seen, rewards, ended


@pytest.mark.parametrize("seed", range(6))
def test_remember_cue_rewards_only_the_cue_at_the_end(seed):
    for last in (0, 1):
        seen, rewards, ended = played([0, 1, 0, last], seed)
        assert seen[1:] == [0.0] * 4  # nothing there tells the cue
        assert rewards == [0.0, 0.0, 0.0, 1.0 if (last == 1) == (seen[0] > 0) else -1.0]
        assert ended == [(False, False)] * 3 + [(True, False)]


def test_cues_come_equally_often():
    first = [played([], seed)[0][0] for seed in range(400)]
    assert set(first) == {-1.0, 1.0}
    assert 140 < first.count(1.0) < 260


@pytest.mark.parametrize("seed", range(6))
def test_a_tossed_coin_pays_for_its_side(seed):
    env = PROBES["TossedCoin"]()
    for second in (0, 1):
        assert env.reset(seed=seed)[0].tolist() == [0.0]
        (side,), *first = env.step(1)[:4]
        assert first == [0.0, False, False]
        assert env.step(second)[1:4] == (1.0 if (second == 1) == (side > 0) else -1.0, True, False)
    env.reset(seed=seed)
    assert env.step(0)[1:4] == (0.5, True, False)


def test_both_sides_of_a_tossed_coin_come_equally_often():
    env, sides = PROBES["TossedCoin"](), []
    env.reset(seed=0)
    for _ in range(400):
        env.reset()
        sides.append(float(env.step(1)[0][0]))
    assert set(sides) == {-1.0, 1.0}
    assert 140 < sides.count(1.0) < 260
