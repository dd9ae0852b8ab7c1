"""Pictures of runs: what is in them, and that they are the same for the same runs."""

import re

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.plots.axis_labels import metric_label, x_label
from jaxsrl.plots.compare_runs import compare_runs, draw_comparison
from jaxsrl.plots.draw_curves import legend_rows
from jaxsrl.plots.style import color, line, validate_out

RETURN = "episode/return_mean"


def texts(path):
    """Words of an SVG: matplotlib writes each as a comment above its glyphs."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_one_environment_is_a_panel_with_units_and_one_legend(make_run, tmp_path):
    for seed in range(3):
        make_run(f"a{seed}", [1.0, 2.0 + seed], seed=seed)
    make_run("b", [5.0, 6.0], agent="dqn")
    comparison = compare_runs([tmp_path], "steps", RETURN)
    assert comparison.to_json()["groups"][0]["mean"][-1] == pytest.approx(3.0)
    assert (comparison.methods, comparison.estimates, comparison.improvement) == ({}, {}, {})
    out = tmp_path / "plot.svg"
    draw_comparison(comparison, out)
    words = texts(out)
    for word in ("CartPole-v1", "env steps", "training return (reward units)", "ppo (3 runs)", "dqn (1 run)"):
        assert words.count(word) == 1, word
    first = out.read_bytes()
    draw_comparison(comparison, out)
    assert out.read_bytes() == first
    for kind, begin in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        draw_comparison(comparison, out.with_suffix(f".{kind}"))
        assert out.with_suffix(f".{kind}").read_bytes().startswith(begin)


def test_steps_of_offline_runs_are_gradient_steps(make_run, tmp_path):
    make_run("a", [1.0, 2.0], plan="offline")
    for others, unit in ((0, "gradient steps"), (1, "env steps or gradient steps")):
        if others:
            make_run("b", [1.0, 2.0], agent="dqn")
        draw_comparison(compare_runs([tmp_path], "steps", RETURN), tmp_path / "plot.svg")
        assert unit in texts(tmp_path / "plot.svg")


def test_several_environments_have_aggregates_below(make_run, tmp_path):
    for env in ("Pong", "Breakout"):
        for agent, last in (("ppo", 3.0), ("dqn", 2.0)):
            for seed in range(2):
                make_run(f"{env}{agent}{seed}", [0.0, last + seed / 4], env=env, agent=agent, seed=seed)
    comparison = compare_runs([tmp_path], "time", RETURN)
    assert comparison.improvement["ppo", "dqn"].value == 1.0
    assert comparison.estimates["mean"]["ppo"].value == pytest.approx((0.8 + 1) / 2)
    draw_comparison(comparison, tmp_path / "plot.svg")
    words = texts(tmp_path / "plot.svg")
    for word in (
        "Pong",
        "Breakout",
        "IQM",
        "optimality gap",
        "performance profile",
        "share of runs above it",
        "ppo (2 runs)",
    ):
        assert words.count(word) == 1, word
    assert words.count("training time (s)") == 2


def test_a_group_ends_with_its_shortest_run_and_says_so(make_run, tmp_path):
    make_run("a", [1.0] * 10)
    short = make_run("b", [1.0] * 4, seed=1)
    comparison = compare_runs([tmp_path], "steps", RETURN)
    assert comparison.drawn[0].mean.x[-1] == 400
    assert comparison.warnings == (
        f"ppo in CartPole-v1 is drawn up to 400 env_steps, where {short} ends; another of its runs goes to 1,000",
    )


def test_draw_accepts_disjoint_and_single_record_runs(make_run, tmp_path):
    make_run("a", [1.0])
    make_run("b", [1.0], seed=1, steps=500)
    make_run("c", [1.0], agent="dqn")
    comparison = compare_runs([tmp_path], "steps", RETURN)
    assert comparison.warnings == ("ppo in CartPole-v1 is not drawn: its runs have no env_steps in common",)
    draw_comparison(comparison, tmp_path / "plot.svg")
    assert "dqn (1 run)" in texts(tmp_path / "plot.svg")


def test_a_picture_that_cannot_be_written_is_refused(tmp_path):
    for name, message in (("plot.gif", "written as .png, .svg or .pdf"), ("nowhere/plot.png", "there is no directory")):
        with pytest.raises(UserError, match=message):
            validate_out(tmp_path / name)


def test_axes_have_units():
    assert x_label("time", 100.0, []) == ("training time (s)", 1.0)
    assert x_label("time", 1000.0, []) == ("training time (min)", 60.0)
    assert x_label("time", 10_000.0, []) == ("training time (h)", 3600.0)
    assert x_label("frames", 1e9, []) == ("emulator frames", 1.0)
    assert metric_label("utilization/learner/busy") == "utilization/learner/busy (share of time)"
    assert metric_label("loss/policy") == "loss/policy"


def test_many_methods_are_told_apart_by_colour_and_then_by_line():
    looks = [(color(number), line(number)) for number in range(20)]
    assert len(set(looks)) == 20
    assert legend_rows(["ppo", "dqn"], 10.0) == 1
    assert legend_rows(["x" * 80, "y" * 80], 10.0) == 2
