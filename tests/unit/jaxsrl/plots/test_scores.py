"""Scores of runs, and how those of different environments are made comparable."""

import json

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.plots.grouping import group_curves
from jaxsrl.plots.run_curve import read_curves
from jaxsrl.plots.scores import read_bounds, run_score, scores_by_method


@pytest.fixture
def groups(make_run, tmp_path):
    for env, top in (("Pong", 21.0), ("Breakout", 400.0)):
        for agent, share in (("ppo", 1.0), ("dqn", 0.5)):
            for seed in range(2):
                make_run(
                    f"{env}_{agent}_{seed}", [0.0, top, top * (share - 0.1 * seed)], env=env, agent=agent, seed=seed
                )
    curves, _ = read_curves([tmp_path], "steps", "episode/return_mean")
    return group_curves(curves)


def test_a_run_is_worth_its_last_or_best_value_or_its_evaluation(make_run):
    run = make_run("a", [1.0, 9.0, 4.0])
    ((curve,), _) = read_curves([run], "steps", "episode/return_mean")
    assert (run_score(curve, "last"), run_score(curve, "best")) == (4.0, 9.0)
    with pytest.raises(UserError, match="cannot read .*eval.json"):
        run_score(curve, "evaluation")
    (run / "eval.json").write_text(json.dumps({"mean_return": 7}))
    assert run_score(curve, "evaluation") == 7.0
    (run / "eval.json").write_text("{}")
    with pytest.raises(UserError, match="has no mean_return: run `jaxsrl evaluate"):
        run_score(curve, "evaluation")


@pytest.mark.parametrize(("update", "shown"), [({}, "unknown"), ({"update": 4}, "4")])
def test_an_evaluation_of_an_earlier_update_is_no_score(make_run, update, shown):
    run = make_run("a", [1.0, 9.0, 4.0])
    ((curve,), _) = read_curves([run], "steps", "episode/return_mean")
    (run / "checkpoints" / "5").mkdir(parents=True)
    (run / "eval.json").write_text(json.dumps({"mean_return": 7, **update}))
    with pytest.raises(
        UserError, match=f"is of update {shown}: expected that of the newest checkpoint, 5; run `jaxsrl"
    ):
        run_score(curve, "evaluation")
    (run / "eval.json").write_text(json.dumps({"mean_return": 7, "update": 5}))
    assert run_score(curve, "evaluation") == 7.0


def test_without_bounds_the_worst_run_is_0_and_the_best_is_1(groups):
    methods, left_out = scores_by_method(groups, "last", None)
    for found in methods["ppo"]:
        np.testing.assert_allclose(np.sort(found), [5 / 6, 1])
    for found in methods["dqn"]:
        np.testing.assert_allclose(np.sort(found), [0, 1 / 6], atol=1e-12)
    assert left_out == []


def test_bounds_become_0_and_1(groups):
    methods, _ = scores_by_method(groups, "last", {"Pong": (-21.0, 21.0), "Breakout": (0.0, 400.0)})
    breakout, pong = methods["ppo"]  # sorted by environment
    np.testing.assert_allclose(np.sort(breakout), [0.9, 1])
    np.testing.assert_allclose(np.sort(pong), [(0.9 * 21 + 21) / 42, 1])
    with pytest.raises(UserError, match='--normalize has no bounds for Pong: expected {"Pong"'):
        scores_by_method(groups, "last", {"Breakout": (0.0, 400.0)})


def test_scores_skip_methods_without_all_environments(groups):
    some = [group for group in groups if (group.label, group.env_id) != ("dqn", "Pong")]
    methods, left_out = scores_by_method(some, "last", None)
    assert list(methods) == ["ppo"]
    assert left_out == ["dqn is in no aggregate: it has no run in Pong"]
    apart = [group for group in groups if (group.label == "dqn") == (group.env_id == "Pong")]
    methods, left_out = scores_by_method(apart, "last", None)
    assert methods == {}
    assert left_out == ["no aggregate over environments: no group has runs in all of Breakout, Pong"]


def test_runs_that_are_all_the_same_are_all_as_good_as_the_best(make_run, tmp_path):
    for env in ("A", "B"):
        make_run(env, [3.0], env=env)
    curves, _ = read_curves([tmp_path], "steps", "episode/return_mean")
    methods, _ = scores_by_method(group_curves(curves), "last", None)
    assert [found.tolist() for found in methods["ppo"]] == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": [0]}', 'expected {"environment id": .*got {"a": .0.}'),
        ("[1]", "expected {"),
        ('{"a": [2, 2]}', "the bounds of a are both 2"),
        ('{"a"', "cannot read"),
    ],
)
def test_bounds_that_are_none_are_refused(tmp_path, text, message):
    path = tmp_path / "bounds.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_bounds(path)
    path.write_text('{"a": [0, 2.5]}')
    assert read_bounds(path) == {"a": (0.0, 2.5)}
