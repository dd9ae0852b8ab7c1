"""The terminal's view and the plain line, made without a terminal."""

# pyright: reportArgumentType=false

import dataclasses
import io
import math

import pytest
from rich.console import Console

from jaxsrl.metrics.console import ConsoleSink, plain_line
from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.metrics.live_state import initial_state, with_evaluation, with_record
from jaxsrl.metrics.terminal_view import RunPanel, render_panel
from jaxsrl.terminal.format import format_duration, format_number
from jaxsrl.terminal.sparkline import lengths, sparkline
from tests.support.metric_records import facts, record

WELL = {
    "episode/return_mean": 21.25,
    "episode/count": 1234.0,
    "episode/length_mean": 88.0,
    "speed/env_steps_per_second": 1500.0,
    "policy/lag_mean": 0.5,
    "policy/lag_max": 1.0,
    "utilization/environments/busy": 0.25,
    "utilization/environments/wait": 0.75,
    "utilization/learner/busy": 0.5,
    "checkpoint/update": 2.0,
}


def state(update=5, **values):
    return with_record(initial_state(facts(updates=10, action_repeat=4)), record(update, **values))


def shown(panel, width=80, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(width=width, file=file).print(panel)
    return file.buffer.getvalue().decode(encoding).splitlines()


def line(label, lines):
    return next(text for text in lines if text.startswith(label))


def test_at_80_columns_everything_is_there_and_nothing_is_wider():
    lines = shown(render_panel(state(**WELL)))
    assert max(map(len, lines)) <= 80
    assert "50%" in line("progress", lines)
    assert "2 s left" in line("progress", lines)  # 5 updates took 2.5 s, rounded to even
    assert any("320 of 640 env steps, update 5, after 2 s" in text for text in lines)
    assert "21.25  best 21.25" in line("training return", lines)
    assert any("of 1,234 episodes, 88.00 env steps long" in text for text in lines)
    assert "1,500 env steps/s  6,000 frames/s" in line("speed", lines)
    assert "0.50 updates mean, 1 max" in line("policy lag", lines)
    assert "update 2, 0 s ago" in line("checkpoint", lines)


def test_view_has_a_bar_for_every_fragment():
    lines = shown(render_panel(state(**WELL)))
    environments, inference, learner = (line(name, lines) for name in ("environments", "inference", "learner"))
    assert environments.rstrip().endswith("25%    75%  actions, free slots")
    assert environments.count("█") * 3 == pytest.approx(environments.count("░"), abs=3)
    assert "not known" in inference
    assert "50%" in learner
    assert "trajectories" not in learner  # how long it waited is not known


def test_view_layout_is_constant():
    empty = shown(render_panel(initial_state(facts())))
    full = shown(render_panel(state(**WELL)))
    assert [text[:14].rstrip() for text in empty] == [text[:14].rstrip() for text in full]
    assert "starting" in line("learner", empty)
    assert "no episode" in line("training return", empty)
    assert "none yet" in line("checkpoint", empty)


def test_what_failed_is_shown_and_only_then():
    bad = {
        "env/restarts_total": 3.0,
        "env/hangs_total": 1.0,
        "env/truncated_by_failure_total": 7.0,
        "env/disabled_rows": 4.0,
        "learner/nonfinite_updates_total": 2.0,
        "checkpoint/failed_saves_total": 5.0,
        "metrics/dropped_records_total": 6.0,
        "fox/value/clamped_fraction": 0.25,
        "fox/value/deviation": 1e6,
    }
    well, ill = shown(render_panel(state(**WELL))), shown(render_panel(state(**WELL, **bad)))
    assert well == ill[: len(well)]
    told = "\n".join(ill[len(well) :])
    for words in ("3 restarted (1 had hung), 7 episodes cut", "4 are no longer stepped", "2 updates were not finite"):
        assert words in told
    assert "5 checkpoints could not be written" in told
    assert "6 dropped" in told
    assert "25% of value targets" in told
    assert "value targets grow without bound" in told


def test_view_is_ascii_without_unicode():
    odd = with_record(initial_state(facts()), record(5, **WELL))
    named = with_record(initial_state(type(odd.facts)("runs/größe", odd.facts.plan, 640, 1)), record(5, **WELL))
    text = "\n".join(shown(render_panel(named), encoding="ascii"))
    assert "#" in text
    assert "runs/gr??e" in text


@pytest.mark.parametrize("width", [20, 60, 200])
def test_narrow_and_wide_terminals_are_filled_and_not_broken(width):
    lines = shown(render_panel(state(**WELL)), width)
    assert len(lines) == len(shown(render_panel(state(**WELL))))
    assert max(map(len, lines)) <= min(width, 100)


def test_between_two_records_the_clock_goes_on():
    panel = RunPanel(lambda: state(**WELL), lambda: 100.0)
    lines = shown(panel)
    assert "update 2, 1 min 40 s ago" in line("checkpoint", lines)
    assert any("after 1 min 42 s" in text for text in lines)


def test_a_picture_can_be_exported():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_panel(state(**WELL)))
    assert "learner" in console.export_svg(title="jaxsrl")


def test_without_a_terminal_a_record_is_one_plain_line(capsys):
    console = ConsoleSink(facts(updates=10, action_repeat=4))
    console.write(record(5, **WELL, **{"env/restarts_total": 1.0, "env/truncated_by_failure_total": 2.0}))
    console.close()
    assert capsys.readouterr().out == (
        " 50% | 320 env steps | training return 21.25 | 1,500 env steps/s (6,000 frames/s) | lag 1 | waits: environments 75% | "
        "1 restarted, 2 episodes cut | 2 s left\n"
    )


def test_a_plain_line_has_nothing_that_is_not_known():
    assert plain_line(initial_state(facts())) == "  0% | 0 env steps | 0 env steps/s | lag 0"


def test_on_a_terminal_the_newest_record_is_shown_and_left_there(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    console = ConsoleSink(facts(), [3.0])
    try:
        console.write(record(4, **WELL))
        console.write(record(5, **WELL))
    finally:
        console.close()
        console.close()
    printed = capsys.readouterr().out
    assert "320 of 640 env steps" in printed
    assert "best 21.25" in printed


def test_sparkline_scales_from_minimum_to_maximum():
    assert sparkline([100.0, 0.0, 1.0, 2.0, 3.5, 7.0], 5) == "▁▂▃▄█"
    assert sparkline([0.0, 7.0], 5, unicode=False) == "_#"
    assert sparkline([2.0, 2.0], 5) == "▁▁"
    assert sparkline([1.0, math.nan, 2.0], 5) == "▁ █"
    assert sparkline([], 5) == ""


def test_bar_shows_every_share_without_overflow():
    assert lengths([0.5, 0.25], 20) == [10, 5]
    assert lengths([0.001, 0.0], 20) == [1, 0]
    assert lengths([0.8, 0.9], 20) == [16, 4]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3.0, "0 s"), (59.4, "59 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min"), (3 * 86400 + 4 * 3600.0, "3 d 4 h")],
)
def test_a_duration_has_its_two_largest_units(seconds, words):
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"),
        (0.0123, "0.0123"),
        (-1.5, "-1.50"),
        (312.44, "312.4"),
        (12345.0, "12,345"),
        (1e9, "1e+09"),
        (math.inf, "inf"),
    ],
)
def test_a_number_has_the_digits_that_count(value, words):
    assert format_number(value) == words


def test_evaluations_have_a_row_with_their_curve():
    first = Evaluation(2, 128, 512, "greedy", 30.0, 0.0, 30.0, 30.0, 9.0, 1, 0, 0.1)
    sampled = dataclasses.replace(first, mode="sample", mean_return=99.0)
    worse = dataclasses.replace(first, update=4, env_steps=256, mean_return=10.0)
    evaluated = with_evaluation(with_evaluation(with_evaluation(state(**WELL), first), sampled), worse)
    lines = shown(render_panel(evaluated))
    assert "10.00  best 30.00; greedy, at 256 env steps" in line("evaluation return", lines)
    assert line("evaluation return", lines).rstrip().endswith(sparkline([30.0, 10.0], 40, True))
    assert max(map(len, lines)) <= 80
    assert not any(text.startswith("evaluation") for text in shown(render_panel(state(**WELL))))
    resumed = initial_state(facts(), evaluations=[first, worse])
    assert resumed.evaluation_curve == (30.0, 10.0)
