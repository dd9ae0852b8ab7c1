"""The training loop around a trainable that only counts."""

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.checkpoints.store import CheckpointSaveError, CheckpointStore
from jaxsrl.learner.loop import LearnerStats
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.runs.summary import summarize
from jaxsrl.training.callbacks import Callback
from jaxsrl.training.coordinator import Coordinator
from jaxsrl.training.run_checkpoints import RunCheckpoints
from jaxsrl.training.stop_rules import GradientBudget
from jaxsrl.training.train import TrainingLoop
from tests.support.metric_records import make_plan
from tests.support.run_configs import run_config

CONFIG = {
    "num_envs": 2,
    "rollout_length": 2,
    "total_env_steps": 24,
    "checkpoint_interval_updates": 4,
    "checkpoint_max_to_keep": 9,
    "checkpoint_partial_restore": True,
    "stall_timeout_seconds": 600.0,
    "shutdown_timeout_seconds": 0.0,
    "metrics_interval_seconds": 0.0,
    "metrics_tensorboard": False,
}


class Counter:
    """A trainable and its learner; `on_step` is called with the number of each step."""

    def __init__(self, on_step=lambda number: None):
        self.num_updates, self.metrics, self.stats, self.too_many_nonfinite = 0, {}, LearnerStats(), False
        self.events, self._on_step, self.skipped_batch, self.stage = [], on_step, None, 0

    @property
    def state(self):
        return self.num_updates

    def rows_fit(self, arrays):
        return True

    def restore_or_init(self, arrays):
        self.num_updates = 0 if arrays is None else int(arrays["n"])
        return self.num_updates

    def start(self):
        self.events.append("start")
        return self

    def check_restored(self, should_stop):
        self.events.append("check")

    def step(self):
        self._on_step(self.num_updates)
        self.num_updates += 1
        self.stats.updates += 1
        return True

    def final_state(self):
        return self.num_updates

    def to_arrays(self):
        return {"n": np.array(self.num_updates), "stage": np.array(self.stage)}

    def set_stage(self, stage):
        self.stage = stage

    def episode_metrics(self):
        return {}

    episode_timings = totals = episode_metrics

    def waits(self):
        return []

    def close(self, failure):
        self.events.append(failure)


def make_setup(directory, **changes):
    config = run_config(**{**CONFIG, **changes})
    identity = {"agent_name": "counter", "experiment": {}}
    return SimpleNamespace(
        config=config,
        directory=directory,
        identity=identity,
        plan=make_plan("serial"),
        spec=SimpleNamespace(action_repeat=1),
        quiet=True,
        lifecycle=Lifecycle(),
        agent=None,
        keys=SimpleNamespace(init=None),
        log=directory.log,
    )


def train(path, counter, coordinator=None, callbacks=(), **changes):
    with RunDirectory(path) as directory:
        return TrainingLoop(make_setup(directory, **changes), counter, coordinator or Coordinator(), callbacks).run()


@pytest.fixture
def fits(monkeypatch):
    """Every checkpoint fits the counter."""
    monkeypatch.setattr("jaxsrl.training.run_checkpoints.RunCheckpoints._select", lambda self, arrays, metadata: arrays)


def test_train_saves_and_closes(tmp_path):
    counter = Counter()
    report = train(tmp_path, counter)
    assert (report.num_updates, report.env_steps, report.stopped_by) == (6, 24, "")
    assert counter.events == ["start", "check", None]
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [4, 6]


@pytest.mark.parametrize("stopped_after", [3, 6])
def test_every_update_has_one_record(tmp_path, stopped_after):
    class Stopping(Callback):
        def on_update(self, run):
            if run.num_updates == stopped_after < 6:
                run.stop("enough")

    train(tmp_path, Counter(), callbacks=[Stopping()])
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["update"] for record in records] == list(range(1, stopped_after + 1))
    assert records[-1]["checkpoint/update"] == stopped_after


def test_train_resumes_and_starts_nothing_when_complete(tmp_path, fits):
    train(tmp_path, Counter(), total_env_steps=12)
    resumed = Counter()
    report = train(tmp_path, resumed)
    assert (report.num_updates, report.env_steps, report.env_steps_before) == (6, 24, 12)
    assert resumed.stats.updates == 3
    complete = Counter()
    assert train(tmp_path, complete).num_updates == 6
    assert complete.events == []


def test_a_run_that_spends_its_gradient_budget_is_finished(tmp_path):
    report = train(tmp_path, Counter(), callbacks=[GradientBudget(5)])
    assert report.stop_reason == "5 gradient steps are done (--run.gradient-steps)"
    log = (tmp_path / "log.txt").read_text()
    assert "complete at update 6, 24 env steps, " in log
    assert f" s: {report.stop_reason}" in log
    summary = summarize(tmp_path)
    assert (summary.state, summary.progress, summary.num_updates) == ("finished", 1.0, 6)


def test_train_closes_with_the_error_and_saves_before(tmp_path):
    def fail(number):
        if number == 2:
            raise ArithmeticError("step 2")

    counter = Counter(fail)
    with pytest.raises(ArithmeticError) as raised:
        train(tmp_path, counter)
    assert counter.events[-1] is raised.value
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [2]


def test_train_stops_between_updates_on_a_signal(tmp_path):
    counter = Counter(lambda number: os.kill(os.getpid(), signal.SIGTERM) if number == 1 else None)
    report = train(tmp_path, counter)
    assert (report.num_updates, report.stopped_by) == (2, "SIGTERM")
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [2]


def test_train_stops_when_all_processes_agree(tmp_path):
    class Agreed(Coordinator):
        requested = ""

        @property
        def stopped_by(self):
            return self.requested if counter.num_updates == 4 else ""

        def request_stop(self, signal_name):
            self.requested = signal_name
            return True

    counter = Counter(lambda number: os.kill(os.getpid(), signal.SIGTERM) if number == 1 else None)
    report = train(tmp_path, counter, Agreed())
    assert (report.num_updates, report.stopped_by) == (4, "SIGTERM")


def test_a_process_that_is_not_main_writes_nothing(tmp_path):
    coordinator = Coordinator()
    coordinator.is_main = False
    train(tmp_path, Counter(), coordinator)
    assert CheckpointStore(tmp_path / "checkpoints").steps() == []
    assert not (tmp_path / "metrics.jsonl").exists()


class Saves(Callback):
    """Saves, or fails, before the first update of this process."""

    def __init__(self, fails=False):
        self.fails, self.saved = fails, []

    def on_start(self, run):
        if self.fails:
            raise ZeroDivisionError
        self.saved.append((run.num_updates, run.save()))


def test_a_callback_saves_before_the_first_update(tmp_path, monkeypatch):
    saves, failing = Saves(), Counter(lambda number: {}[number])
    with pytest.raises(KeyError):
        train(tmp_path, failing, callbacks=[saves])
    assert saves.saved == [(0, True)]
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [0]
    selected = []
    monkeypatch.setattr(
        RunCheckpoints, "_select", lambda self, arrays, metadata: selected.append(arrays["n"]) or arrays
    )
    train(tmp_path, Counter(), callbacks=[saves])
    assert selected == [0], "the checkpoint is no warm start"
    assert saves.saved[1:] == [(0, True)]
    assert "resumes" in (tmp_path / "log.txt").read_text()


class SetsStage(Callback):
    """Sets the stage to the update at each, after a save if asked."""

    def __init__(self, saves_first):
        self.saves_first = saves_first

    def on_update(self, run):
        if self.saves_first:
            assert run.save()
        run.set_stage(run.num_updates)


@pytest.mark.parametrize("saves_first", [False, True])
def test_checkpoints_hold_what_callbacks_changed_at_their_update(tmp_path, saves_first):
    train(tmp_path, Counter(), callbacks=[SetsStage(saves_first)], checkpoint_interval_updates=1)
    store = CheckpointStore(tmp_path / "checkpoints")
    assert [int(store.restore_newest(last=update)[1]["stage"]) for update in range(1, 7)] == [1, 2, 3, 4, 5, 6]


def test_an_error_before_the_first_update_saves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, Counter(), callbacks=[Saves(fails=True)])
    assert CheckpointStore(tmp_path / "checkpoints").steps() == []


def test_loop_rolls_back_a_learner_that_is_stuck(tmp_path):
    directory = SimpleNamespace(checkpoints=tmp_path, log=print)
    loop = TrainingLoop(make_setup(directory), Counter(), Coordinator())
    rolled_back = []
    loop._checkpoints.roll_back = rolled_back.append
    learner = SimpleNamespace(too_many_nonfinite=True, num_updates=1)
    loop.after_update(learner)
    assert rolled_back == [learner]


def test_rollback_goes_to_before_all_skipped_updates(tmp_path, monkeypatch):
    """Of updates 6 to 10 two are skipped, and those between took no gradient step: checkpoint 8 holds what diverged."""
    monkeypatch.setattr(
        "jaxsrl.training.run_checkpoints.restore_state", lambda agent, key, arrays, **options: int(arrays["n"])
    )
    restored = []

    def skip(number):
        counter.too_many_nonfinite = number == 9
        counter.stats.skipped_span = max(0, number - 4)

    counter = Counter(skip)
    counter.restore_learned = restored.append
    changes = {"learner_on_nonfinite": "roll_back", "learner_max_nonfinite_updates": 2, "total_env_steps": 48}
    assert train(tmp_path, counter, **changes).num_updates == 12
    assert restored == [4]


def test_every_process_retries_a_last_save_that_failed(tmp_path, monkeypatch):
    """Process 0 fails to write the last checkpoint once; the rows of all processes are merged again for the second try."""
    merges, decisions, failures = {True: [], False: []}, [], [CheckpointSaveError("disk full")]
    save = CheckpointStore.save

    class Recorded(Coordinator):
        def __init__(self, is_main):
            self.is_main = is_main

        def merge_rows(self, arrays):
            merges[self.is_main].append(int(arrays["n"]))
            return arrays

        def decide(self, own):
            if self.is_main:
                decisions.append(own)
            return decisions[0]

    def save_or_fail(store, step, arrays, metadata):
        if step == 4 and failures:
            raise failures.pop()
        return save(store, step, arrays, metadata)

    monkeypatch.setattr(CheckpointStore, "save", save_or_fail)
    for name, is_main in (("main", True), ("other", False)):
        train(tmp_path / name, Counter(), Recorded(is_main), total_env_steps=16)
    assert merges == {True: [4, 4], False: [4, 4]}
    assert CheckpointStore(tmp_path / "main" / "checkpoints").steps() == [4]
