"""Evaluations while training: their file, and their curves beside the records of a run."""

import dataclasses
import json

import numpy as np

from jaxsrl.metrics.evaluations import (
    EVALUATIONS,
    Evaluation,
    append_evaluation,
    evaluation_columns,
    read_evaluations,
)
from jaxsrl.metrics.record_file import RecordFile
from jaxsrl.metrics.tensorboard_sink import TensorBoardSink

FIRST = Evaluation(2, 200, 800, "greedy", 5.0, 1.0, 4.0, 6.0, 50.0, 3, 7, 0.5)
SAMPLED = dataclasses.replace(FIRST, mode="sample", mean_return=3.0)
SECOND = dataclasses.replace(FIRST, update=3, env_steps=300, frames=1200, mean_return=9.0)


def test_evaluations_survive_torn_and_foreign_lines(tmp_path):
    append_evaluation(tmp_path, FIRST)
    with open(tmp_path / EVALUATIONS, "a") as file:
        file.write('[1]\n{"update": 3}\n{"update": 3, "env_st')
    append_evaluation(tmp_path, SECOND)
    assert read_evaluations(tmp_path) == [FIRST, SECOND]
    assert read_evaluations(tmp_path / "none") == []


def test_columns_place_versions_on_every_axis(tmp_path):
    lines = [{"update": n, "env_steps": 100 * n, "frames": 400 * n, "wall_seconds": 10.0 * n} for n in (1, 2, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = RecordFile(tmp_path / "metrics.jsonl")
    records.refresh()
    columns = evaluation_columns([SECOND, FIRST, SAMPLED], records)
    np.testing.assert_array_equal(columns["env_steps"], [200, 300])
    np.testing.assert_array_equal(columns["frames"], [800, 1200])
    np.testing.assert_array_equal(columns["elapsed_seconds"], [20, 30])
    np.testing.assert_array_equal(columns["eval/return_mean"], [5, 9])
    np.testing.assert_array_equal(columns["eval/sample/return_mean"], [3, np.nan])
    assert evaluation_columns([], records) == {}


def test_records_grow_while_columns_are_read(tmp_path, monkeypatch):
    def line(n):
        return json.dumps({"update": n, "env_steps": 100 * n, "wall_seconds": 10.0 * n}) + "\n"

    path, interp = tmp_path / "metrics.jsonl", np.interp
    path.write_text(line(1) + line(4))
    records = RecordFile(path)
    records.refresh()

    def grow_meanwhile(x, known_x, known_y):
        with memoryview(known_x), memoryview(known_y), open(path, "a") as file:  # as numpy does while it reads
            file.write(line(5))
            file.flush()
            records.refresh()  # in another thread
        return interp(x, known_x, known_y)

    monkeypatch.setattr(np, "interp", grow_meanwhile)
    np.testing.assert_array_equal(evaluation_columns([FIRST, SECOND], records)["elapsed_seconds"], [20, 30])
    assert {name: len(values) for name, values in records.columns.items()} == dict.fromkeys(records.columns, 3)


def test_agents_and_tasks_have_curves_of_their_own(tmp_path):
    returns = {"agent_returns": {"hunter_0": 2.0, "prey_0": -2.0}, "task_returns": {"easy": 7.0}}
    evaluation = dataclasses.replace(FIRST, **returns)
    append_evaluation(tmp_path, evaluation)
    assert read_evaluations(tmp_path) == [evaluation]
    own = {name: value for name, value in evaluation.metrics().items() if name.startswith("eval/return/")}
    assert own == {"eval/return/hunter_0": 2.0, "eval/return/prey_0": -2.0, "eval/return/easy": 7.0}
    assert dataclasses.replace(evaluation, mode="sample").metrics()["eval/sample/return/easy"] == 7.0


def test_tensorboard_has_evaluations_at_their_env_steps(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path)
    sink.write_evaluation(FIRST)
    sink.write_evaluation(SECOND)
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("eval/return_mean")] == [(200, 5.0), (300, 9.0)]
