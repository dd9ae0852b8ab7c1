"""What is read of runs before they are compared."""

import json

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.metrics.evaluations import Evaluation, append_evaluation
from jaxsrl.plots.run_curve import read_curves

RETURN = "episode/return_mean"


def test_a_curve_is_over_steps_frames_or_time(make_run):
    run = make_run("a", [1.0, 3.0], steps=50)
    for x, places in (("steps", [50, 100]), ("frames", [200, 400]), ("time", [1, 2])):
        ((curve,), left_out) = read_curves([run], x, RETURN)
        np.testing.assert_array_equal(curve.x, places)
        np.testing.assert_array_equal(curve.y, [1, 3])
        assert (curve.env_id, left_out) == ("CartPole-v1", [])


def test_read_curves_expands_directories_once(make_run, tmp_path):
    runs = [make_run("sweep/a", [1.0]), make_run("sweep/deeper/b", [2.0]), make_run("c", [3.0])]
    curves, _ = read_curves([tmp_path, runs[0]], "steps", RETURN)
    assert sorted(curve.path.name for curve in curves) == ["a", "b", "c"]


def test_what_a_resumed_run_did_again_is_in_its_curve_once(make_run):
    run = make_run("a", [1.0, 2.0, 3.0])
    again = {"update": 3, "env_steps": 300, "frames": 1200, "wall_seconds": 0.5, "checkpoint/update": 2, RETURN: 30.0}
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(again) + '\n{"update": 4, "env_st')
    ((curve,), _) = read_curves([run], "time", RETURN)
    np.testing.assert_array_equal(curve.y, [1, 2, 30])
    np.testing.assert_array_equal(curve.x, [1, 2, 2.5])


def test_records_without_the_metric_or_with_nan_leave_no_point(make_run):
    run = make_run("a", [1.0, float("nan"), 3.0])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"update": 4, "env_steps": 400, "frames": 4, "wall_seconds": 4.0}\n')
    ((curve,), _) = read_curves([run], "steps", RETURN)
    np.testing.assert_array_equal(curve.x, [100, 300])


def test_read_curves_names_skipped_runs(make_run, tmp_path):
    empty, other = make_run("empty", []), make_run("other", [1.0])
    lines = (other / "metrics.jsonl").read_text().replace(RETURN, "loss")
    (other / "metrics.jsonl").write_text(lines)
    make_run("good", [1.0])
    curves, left_out = read_curves([tmp_path], "steps", RETURN)
    assert [curve.path.name for curve in curves] == ["good"]
    assert sorted(left_out) == [
        f"{empty} is skipped: it has no records yet",
        f"{other} is skipped: it has no {RETURN}",
    ]


def test_what_cannot_be_plotted_is_refused_with_what_to_do(make_run, tmp_path):
    empty, good = make_run("empty", []), make_run("good", [1.0])
    (tmp_path / "none").mkdir()
    cases = [
        (tmp_path / "nowhere", RETURN, "there is no directory"),
        (good / "config.json", RETURN, "is a file: expected a run's directory"),
        (tmp_path / "none", RETURN, "there is no run in"),
        (empty, RETURN, "nothing to plot: .*empty has no records yet"),
        (good, "return_mean", "no run here has a metric 'return_mean': did you mean episode/return_mean"),
        (good, "zzzzz", "they record elapsed_seconds, env_steps, episode/return_mean"),
    ]
    for path, metric, message in cases:
        with pytest.raises(UserError, match=message):
            read_curves([path], "steps", metric)
    (good / "config.json").write_text("[]")
    with pytest.raises(UserError, match="is no JSON object"):
        read_curves([good], "steps", RETURN)


def test_evaluations_are_curves_over_every_axis(make_run):
    run = make_run("a", [1.0, 3.0], steps=50)
    append_evaluation(run, Evaluation(1, 50, 200, "greedy", 7.0, 0.0, 7.0, 7.0, 9.0, 1, 0, 0.1))
    for x, place in (("steps", 50), ("frames", 200), ("time", 1)):
        ((curve,), _) = read_curves([run], x, "eval/return_mean")
        np.testing.assert_array_equal(curve.x, [place])
        np.testing.assert_array_equal(curve.y, [7])
