"""How totals become the rates of a record."""

import time
import types

import pytest

from jaxsrl.learner.loop import LearnerStats
from jaxsrl.training import reporter as reporter_module
from jaxsrl.training.reporter import Reporter, call_rates, update_metrics
from tests.support.metric_records import make_plan

SERIAL = make_plan("serial")


class Kept:
    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def close(self):
        pass


def test_batch_size_and_latency_are_those_of_a_call():
    gained = {"inference/busy_seconds": 0.2, "inference/calls": 40.0, "inference/rows": 1280.0}
    assert call_rates(gained) == {"inference/batch_rows": 32.0, "inference/latency_ms": pytest.approx(5.0)}


def test_what_was_not_called_has_no_batch_size():
    assert call_rates({"inference/calls": 0.0, "inference/rows": 0.0}) == {}


@pytest.mark.parametrize("policy", ["", "a/"])
def test_agent_metrics_need_a_gradient_step(policy):
    idle = {f"{policy}{name}": 0.0 for name in ("loss/td", "replay/priority", "exploration/epsilon")}
    kept = {f"{policy}replay/gradient_steps": 0.0, f"{policy}replay/size": 8.0, "learner/nonfinite_update": 0.0}
    others = {"b/loss/td": 1.0, "b/replay/gradient_steps": 2.0} if policy else {}
    assert update_metrics(idle | kept | others) == kept | others
    assert update_metrics(idle | kept | {f"{policy}replay/gradient_steps": 1.0}).keys() == (idle | kept).keys()


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
    reporter = Reporter(kept, parts.learner, parts.source.totals, steps_per_update=64, action_repeat=4, plan=SERIAL)
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
    assert first.values["utilization/learner/wait"] == 0.5
    assert first.values["policy/lag_mean"] == 1.0
    assert (second.update, second.wall_seconds) == (12, 2.5)
    assert second.values["speed/env_steps_per_second"] == 64 / 0.5
    assert second.values["utilization/learner/wait"] == pytest.approx(0.2)
    assert (second.values["policy/lag_mean"], second.values["policy/lag_max"]) == (0.0, 3.0)
    assert (second.values["loss/policy"], second.values["checkpoint/update"]) == (0.5, 12.0)


def test_the_last_record_has_the_speed_of_the_last_interval(monkeypatch):
    clock, parts, kept = Clock(monkeypatch), Parts(), Kept()
    reporter = Reporter(kept, parts.learner, parts.source.totals, 64, 1, SERIAL)
    for seconds in (4.0, 1.9):
        parts.advance(updates=2, lag=1.0, waited=0.5)
        clock.now += seconds
        reporter.write({})
    for _ in range(2):
        clock.now += 0.05  # nothing but saving
        reporter.write({})
    speeds = [record.values["speed/env_steps_per_second"] for record in kept.records]
    assert speeds == pytest.approx([128 / 4.0, 128 / 1.9, 128 / 1.95, 128 / 2.0])
    assert [record.values["policy/lag_mean"] for record in kept.records] == [1.0] * 4
    assert [record.wall_seconds for record in kept.records] == pytest.approx([4.0, 5.9, 5.95, 6.0])


def test_a_record_without_an_update_divides_by_nothing(monkeypatch):
    Clock(monkeypatch)
    parts, kept = Parts(), Kept()
    Reporter(kept, parts.learner, parts.source.totals, 64, 1, SERIAL).write({})
    assert kept.records[0].values["speed/env_steps_per_second"] == 0.0
    assert kept.records[0].values["policy/lag_mean"] == 0.0


def test_a_record_is_due_once_the_newest_is_old_enough(monkeypatch):
    clock, parts = Clock(monkeypatch), Parts()
    reporter = Reporter(Kept(), parts.learner, parts.source.totals, 64, 1, SERIAL)
    clock.now += 1.9
    assert not reporter.due(2.0)
    clock.now += 0.2
    assert reporter.due(2.0)
    reporter.write({})
    assert not reporter.due(2.0)


def test_wall_time_is_real_time():
    parts, kept, start = Parts(), Kept(), time.monotonic()
    reporter = Reporter(kept, parts.learner, parts.source.totals, 64, 1, SERIAL)
    time.sleep(0.02)
    reporter.write({})
    assert 0.02 <= kept.records[0].wall_seconds <= time.monotonic() - start


def test_wall_time_includes_compilation_before_the_first_record(monkeypatch):
    clock, parts, kept = Clock(monkeypatch), Parts(), Kept()
    reporter = Reporter(kept, parts.learner, parts.source.totals, 64, 1, SERIAL, started=clock.now - 8.0)
    parts.advance(updates=1, lag=0.0, waited=0.0)
    clock.now += 2.0
    reporter.write({})
    assert kept.records[0].wall_seconds == 10.0
    assert kept.records[0].values["speed/env_steps_per_second"] == 32.0
