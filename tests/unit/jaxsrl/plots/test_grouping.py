"""Which runs are repetitions, and what tells the others apart."""

from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.plots.grouping import Group, count_seeds_once, group_curves
from jaxsrl.plots.run_curve import RunCurve, read_curves


@pytest.fixture
def grouped(tmp_path):
    def group(*by):
        curves, _ = read_curves([tmp_path], "steps", "episode/return_mean")
        groups = group_curves(curves, by)
        return {(one.env_id, one.label): sorted(curve.path.name for curve in one.curves) for one in groups}

    return group


def test_group_ignores_seed_name_and_logging(make_run, grouped):
    make_run("a", [1.0], seed=0)
    make_run("b", [2.0], seed=1)
    assert grouped() == {("CartPole-v1", "ppo"): ["a", "b"]}


def test_labels_show_differences_within_an_agent(make_run, grouped):
    make_run("a", [1.0], learning_rate=0.1)
    make_run("b", [1.0], learning_rate=0.1, seed=1)
    make_run("c", [1.0], learning_rate=0.2)
    make_run("d", [1.0], learning_rate=0.2, plan="central")
    make_run("e", [1.0], agent="dqn", learning_rate=0.7)
    assert grouped() == {
        ("CartPole-v1", "ppo, plan serial, learning_rate 0.1"): ["a", "b"],
        ("CartPole-v1", "ppo, plan serial, learning_rate 0.2"): ["c"],
        ("CartPole-v1", "ppo, plan central, learning_rate 0.2"): ["d"],
        ("CartPole-v1", "dqn"): ["e"],
    }


def test_a_method_keeps_its_label_in_every_environment(make_run, grouped):
    make_run("a", [1.0], env="Pong")
    make_run("b", [1.0], env="Breakout", frame_stack=4)
    make_run("c", [1.0], env="Pong", agent="dqn")
    assert grouped() == {("Pong", "ppo"): ["a"], ("Breakout", "ppo"): ["b"], ("Pong", "dqn"): ["c"]}


def test_one_environment_with_other_options_is_another_group(make_run, grouped):
    make_run("a", [1.0], frame_stack=1)
    make_run("b", [1.0], frame_stack=4)
    assert grouped() == {("CartPole-v1", "ppo, frame_stack 1"): ["a"], ("CartPole-v1", "ppo, frame_stack 4"): ["b"]}


def test_labels_truncate_and_fall_back_to_directories(make_run, grouped):
    make_run("a", [1.0], total_env_steps=1, num_envs=1, rollout_length=1, max_policy_lag=1)
    make_run("b", [1.0], total_env_steps=2, num_envs=2, rollout_length=2, max_policy_lag=2)
    assert list(grouped()) == [
        ("CartPole-v1", "ppo, max_policy_lag 1, num_envs 1, rollout_length 1, ..."),
        ("CartPole-v1", "ppo, max_policy_lag 2, num_envs 2, rollout_length 2, ..."),
    ]
    make_run("c", [1.0], total_env_steps=3, num_envs=2, rollout_length=2, max_policy_lag=2)
    assert [label for _, label in grouped()] == ["a", "b", "c"]


@pytest.mark.parametrize("changed", [{"gradient_steps": 50}, {"replay": {"prepare_devices": 1, "prepare_lag": 8}}])
def test_runs_of_other_budgets_or_lags_are_no_repetitions(make_run, grouped, changed):
    make_run("a", [1.0], gradient_steps=None, replay={"prepare_devices": 0, "prepare_lag": 0})
    make_run("b", [2.0], **{"gradient_steps": None, "replay": {"prepare_devices": 0, "prepare_lag": 0}, **changed})
    assert sorted(grouped().values()) == [["a"], ["b"]]


def test_groups_are_by_the_fields_that_are_asked_for(make_run, grouped):
    make_run("a", [1.0], learning_rate=0.1, plan="central")
    make_run("b", [1.0], learning_rate=0.2, seed=1)
    make_run("c", [1.0], learning_rate=0.2, agent="dqn")
    assert grouped("agent") == {("CartPole-v1", "ppo"): ["a", "b"], ("CartPole-v1", "dqn"): ["c"]}
    assert sorted(grouped("plan").values()) == [["a"], ["b", "c"]]
    assert sorted(grouped("agent.learning_rate", "seed").values()) == [["a"], ["b"], ["c"]]
    assert grouped("run") == {("CartPole-v1", name): [name] for name in "abc"}


def test_a_field_that_no_run_has_is_refused_with_those_like_it(make_run, grouped):
    make_run("a", [1.0])
    with pytest.raises(
        UserError, match="--group-by agent.learning_rat: no run here has .* did you mean agent.learning_rate"
    ):
        grouped("agent.learning_rat")


def test_a_seed_counts_once():
    def curve(name, seed, end):
        config = {"experiment": {"run": {"seed": seed}}}
        return RunCurve(Path(name), config, np.array([1.0, end]), np.array([0.0, 1.0]))

    curves = (curve("short", 0, 5.0), curve("long", 0, 9.0), curve("other", 1, 5.0))
    group, lines = count_seeds_once(Group("env", "a", curves))
    assert [each.path.name for each in group.curves] == ["long", "other"]
    assert lines == ["short is skipped in a: a longer run has the same seed"]
