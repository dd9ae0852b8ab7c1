"""Records: how totals become rates, and where records go."""

import json
import time
import types

import pytest

from jaxsrl.learner.loop import LearnerStats
from jaxsrl.metrics.console import ConsoleSink
from jaxsrl.metrics.sinks import JsonlSink, Record, Sinks, TensorBoardSink
from jaxsrl.runtime import reporter as reporter_module
from jaxsrl.runtime.reporter import Reporter, rates


def record(update=1, **values):
    return Record(update, update * 64, update * 256, update * 0.5, values)


class Kept:
    def __init__(self):
        self.records, self.closed = [], 0

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.closed += 1


def test_a_resumed_run_appends_to_its_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for update in (1, 2):
        sink = JsonlSink(path)
        sink.write(record(update, loss=0.5))
        sink.close()
        sink.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2]
    assert lines[1] == {"update": 2, "env_steps": 128, "frames": 512, "wall_seconds": 1.0, "loss": 0.5}


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(record(loss=1.0))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == 1.0
    sink.close()


def test_tensorboard_reads_every_curve_over_env_steps(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path)
    for update in (1, 2, 3):
        sink.write(record(update, **{"loss/value": update * 0.25, "speed/env_steps_per_second": 10.0}))
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss/value", "speed/env_steps_per_second"}
    points = [(point.step, point.value) for point in events.Scalars("loss/value")]
    assert points == [(64, 0.25), (128, 0.5), (192, 0.75)]


def test_every_sink_gets_every_record_and_is_closed_once():
    kept = [Kept(), Kept()]
    sinks = Sinks(kept)
    sinks.write(record(1))
    sinks.write(record(2))
    sinks.close()
    sinks.close()
    assert [sink.records for sink in kept] == [[record(1), record(2)]] * 2
    assert [sink.closed for sink in kept] == [1, 1]


def test_without_a_terminal_a_record_is_one_plain_line(capsys):
    console = ConsoleSink(total_env_steps=128, action_repeat=4, title="run")
    console.write(
        record(
            **{
                "episode/return_mean": 21.25,
                "speed/env_steps_per_second": 1500.0,
                "policy/lag_max": 1.0,
                "wait_share/learner": 0.5,
            }
        )
    )
    console.close()
    assert capsys.readouterr().out == (
        " 50% | 64 env steps | return 21.2 | 1,500 env steps/s (6,000 frames/s) | lag 1 | "
        "waits: environment 0%, inference 0%, learner 50%\n"
    )


def test_the_first_line_needs_no_episode_and_no_frames(capsys):
    ConsoleSink(total_env_steps=128, action_repeat=1, title="run").write(record())
    printed = capsys.readouterr().out
    assert "return" not in printed
    assert "frames" not in printed
    assert printed.count("\n") == 1


def test_on_a_terminal_a_live_view_shows_the_newest_record(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    console = ConsoleSink(total_env_steps=640, action_repeat=1, title="runs/x")
    for update in range(1, 5):
        values = {"episode/return_mean": 10.0 * update, "checkpoint/update": float(update)}
        console.write(record(update, **values))
    table = console._table(record(5, **{"policy/lag_mean": 0.5}))
    console.close()
    console.close()
    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert "320 of 640 env steps, about 0 s left" in cells
    assert any(cell.startswith("40.0 (mean of last 100 episodes)") and "▁" in cell and "█" in cell for cell in cells)
    assert "0.50 mean, 0 max" in cells
    assert "none yet" in cells
    assert "runs/x" in capsys.readouterr().out


def test_shares_and_latency_come_from_totals_over_wall_time():
    gained = {
        "environment/wait_seconds": 0.5,
        "inference/wait_seconds": 1.0,
        "learner/wait_seconds": 9.0,
        "learner/busy_seconds": 1.5,
        "inference/busy_seconds": 0.2,
        "inference/calls": 40.0,
        "inference/rows": 1280.0,
    }
    assert rates(gained, 2.0) == {
        "wait_share/environment": 0.25,
        "wait_share/inference": 0.5,
        "wait_share/learner": 1.0,  # clocks of several threads: never more than everything
        "busy_share/learner": 0.75,
        "inference/batch_rows": 32.0,
        "inference/latency_ms": pytest.approx(5.0),
    }


def test_what_nobody_counts_has_no_rate():
    assert rates({"inference/calls": 0.0, "inference/rows": 0.0}, 1.0) == {"busy_share/learner": 0.0}


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(reporter_module, "time", types.SimpleNamespace(perf_counter=lambda: self.now))


class Parts:
    """A learner and a source whose totals the test sets."""

    def __init__(self, updates=0):
        self.learner = types.SimpleNamespace(num_updates=updates, metrics={}, stats=LearnerStats())
        self.source = types.SimpleNamespace(totals=lambda: dict(self.totals))
        self.totals = {"learner/wait_seconds": 0.0, "inference/calls": 0.0, "inference/rows": 0.0}

    def advance(self, updates, lag, waited):
        self.learner.num_updates += updates
        self.learner.stats.updates += updates
        self.learner.stats.lag_sum += lag * updates
        self.totals["learner/wait_seconds"] += waited


def test_a_record_measures_since_the_record_before_it(monkeypatch):
    clock, parts, kept = Clock(monkeypatch), Parts(updates=7), Kept()
    reporter = Reporter(kept, parts.learner, parts.source.totals, steps_per_update=64, action_repeat=4)
    parts.advance(updates=4, lag=1.0, waited=1.0)
    clock.now += 2.0
    reporter.write({})
    parts.advance(updates=1, lag=0.0, waited=0.1)
    parts.learner.metrics = {"loss/policy": 0.5}
    parts.learner.stats.lag_max = 3
    reporter.checkpoint_update = 12
    clock.now += 0.5
    reporter.write({})
    first, second = kept.records
    assert (first.update, first.env_steps, first.frames, first.wall_seconds) == (11, 704, 2816, 2.0)
    assert first.values["speed/env_steps_per_second"] == 4 * 64 / 2.0
    assert first.values["wait_share/learner"] == 0.5
    assert first.values["policy/lag_mean"] == 1.0
    assert (second.update, second.wall_seconds) == (12, 2.5)
    assert second.values["speed/env_steps_per_second"] == 64 / 0.5
    assert second.values["wait_share/learner"] == pytest.approx(0.2)
    assert (second.values["policy/lag_mean"], second.values["policy/lag_max"]) == (0.0, 3.0)
    assert (second.values["loss/policy"], second.values["checkpoint/update"]) == (0.5, 12.0)


def test_a_record_without_an_update_divides_by_nothing(monkeypatch):
    Clock(monkeypatch)
    parts, kept = Parts(), Kept()
    Reporter(kept, parts.learner, parts.source.totals, 64, 1).write({})
    assert kept.records[0].values["speed/env_steps_per_second"] == 0.0
    assert kept.records[0].values["policy/lag_mean"] == 0.0


def test_a_record_is_due_once_the_newest_is_old_enough(monkeypatch):
    clock, parts = Clock(monkeypatch), Parts()
    reporter = Reporter(Kept(), parts.learner, parts.source.totals, 64, 1)
    clock.now += 1.9
    assert not reporter.due(2.0)
    clock.now += 0.2
    assert reporter.due(2.0)
    reporter.write({})
    assert not reporter.due(2.0)


def test_wall_time_is_real_time():
    parts, kept = Parts(), Kept()
    reporter = Reporter(kept, parts.learner, parts.source.totals, 64, 1)
    time.sleep(0.02)
    reporter.write({})
    assert 0.02 <= kept.records[0].wall_seconds < 1.0
