"""What a roll-back leaves of the evaluations of a run: those of abandoned versions are not played, and choose no best model."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from jaxsrl.evaluation import while_training
from jaxsrl.evaluation.while_training import EvaluateWhileTraining
from jaxsrl.metrics.evaluations import Evaluation, append_evaluation
from jaxsrl.models.store import BEST, MODELS, RETURN, ModelStore
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.keep_models import KeepModels
from tests.support.run_configs import run_config

RETURNS = {2: 10.0, 4: 5.0, 6: 30.0}


def make_evaluation(update, mean):
    return Evaluation(update, update * 8, update * 8, "greedy", mean, 0.0, mean, mean, 1.0, 3, 0, 1.0)


@pytest.fixture
def run(tmp_path):
    """A run at update 9 whose versions 2, 4 and 6 are evaluated, and whose version 8 waits for it."""
    config = run_config(num_envs=4, rollout_length=2, eval_every=16)
    run = SimpleNamespace(config=config, directory=tmp_path, num_updates=9, is_at_multiple_of=lambda env_steps: False)
    run.lines = []
    run.log, run.try_write = run.lines.append, partial(ActiveRun.try_write, run)
    run.save_model = lambda tags: ModelStore(tmp_path / MODELS).save(9, {"n": np.array(9)}, {}, tags)
    run.try_save_model = partial(ActiveRun.try_save_model, run)
    store = ModelStore(tmp_path / MODELS)
    for update in (2, 4, 6, 8):
        store.save(update, {"n": np.array(update)}, {})
    for update, mean in RETURNS.items():
        append_evaluation(tmp_path, make_evaluation(update, mean))
        store.annotate(update, **{RETURN: mean})
    store.tag(BEST, "6")
    store.tag("pending-8", "8")
    return run


def started(run):
    evaluation = EvaluateWhileTraining(None, None)
    evaluation.on_start(run)
    return evaluation


def test_the_best_model_is_none_of_an_abandoned_update(run):
    evaluation, store = started(run), ModelStore(run.directory / MODELS)
    assert [task.update for task in evaluation._waiting] == [8]
    store.abandon(4)
    evaluation.on_roll_back(run, 4)
    assert not evaluation._waiting
    assert store.tags() == {BEST: 2}
    evaluation._publish(run, make_evaluation(4, 20.0), must_write=True)
    assert store.tags() == {BEST: 4}


def test_an_abandoned_version_is_not_played_to_the_end(run):
    evaluation, closed = started(run), []
    evaluation._playing = evaluation._waiting.popleft()
    evaluation._evaluator = SimpleNamespace(close=lambda: closed.append(True))
    evaluation.on_roll_back(run, 8)
    assert (evaluation._playing.update, closed) == (8, [])
    evaluation.on_roll_back(run, 4)
    assert (evaluation._playing, closed) == (None, [True])


def test_a_resumed_run_does_not_compare_with_what_was_abandoned(run):
    store = ModelStore(run.directory / MODELS)
    store.tag("mine", "6")  # so that it stays
    store.abandon(4)
    assert sorted(store.tags()) == ["mine"]
    evaluation = started(run)
    assert evaluation._best == make_evaluation(2, 10.0)
    store.save(10, {"n": np.array(10)}, {})
    evaluation._publish(run, make_evaluation(10, 20.0), must_write=True)
    assert store.tags()[BEST] == 10


def test_frozen_models_end_no_run(run):
    store = ModelStore(run.directory / MODELS)
    store.freeze()
    evaluation = started(run)
    evaluation._pin(run)
    assert [task.update for task in evaluation._waiting] == [8]
    assert not evaluation._publish(run, make_evaluation(8, 40.0), must_write=True)
    evaluation._release(run, evaluation._waiting.popleft())
    evaluation.on_roll_back(run, 4)
    assert store.tags() == {BEST: 6, "pending-8": 8}
    first, *_, last = run.lines
    assert first.startswith("the model of update 9 was not saved: the models in")
    assert last.startswith("the removal of tag pending-8 was not saved")


def test_a_complete_run_looks_for_its_newest_version(run):
    config, evaluation = run_config(num_envs=4, rollout_length=2, total_env_steps=40, eval_every=16), started(run)
    ModelStore(run.directory / MODELS).untag("pending-8")
    assert [evaluation.has_work(config, run.directory, update) for update in (5, 6)] == [True, False]
    keep = run_config(num_envs=4, rollout_length=2, total_env_steps=40, checkpoint_keep_every=16)
    ModelStore(run.directory / MODELS).tag("step-48", "6")
    assert [KeepModels().has_work(keep, run.directory, update) for update in (4, 6)] == [True, False]


@pytest.mark.parametrize("is_finishing", [False, True])
def test_a_silent_evaluator_is_replaced_and_its_version_unpinned(run, monkeypatch, is_finishing):
    now, started = [0.0], []

    class Silent:
        def __init__(self, *args):
            self.steps, self.finished, self.polls = 0, 0, 0
            started.append(self)

        def send(self, task):
            self.task = task

        def poll(self):
            self.polls += 1
            now[0] += 4.0
            self.steps += self.polls == 1  # one step, then silence
            return None

        def close(self):
            pass

    monkeypatch.setattr(while_training, "Evaluator", Silent)
    monkeypatch.setattr(while_training, "time", SimpleNamespace(monotonic=lambda: now[0]))
    run.config = run_config(num_envs=4, rollout_length=2, eval_every=16, stall_timeout_seconds=20.0)
    store = ModelStore(run.directory / MODELS)
    store.tag("pending-6", "6")
    evaluation = EvaluateWhileTraining(None, None)
    evaluation._enqueue(run, 6)
    evaluation._enqueue(run, 8)
    evaluation._is_finishing = is_finishing
    polls = 0
    while evaluation._waiting or evaluation._playing:
        evaluation._advance(run)
        polls += 1
        assert polls < 100
    # Each process: one step, then six polls of 4 s until the 20 s are over.
    assert [each.polls for each in started] == [7] * (2 if is_finishing else 4)
    assert not [tag for tag in store.tags() if tag.startswith("pending")]
    assert sum("made no step for 24 s (--run.stall-timeout-seconds 20)" in line for line in run.lines) == len(started)
