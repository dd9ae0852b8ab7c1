"""Weights & Biases, with a module of its interface in its place: one run there for one directory."""

import json
import sys
import types

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.config.parts import MetricsConfig
from jaxsrl.metrics.make_sinks import make_sinks
from jaxsrl.metrics.wandb_sink import WandbSink
from tests.support.metric_records import facts, record


class UsageError(Exception):
    pass


class FakeRun:
    def __init__(self):
        self.logged, self.finished, self.defined = [], 0, []

    def define_metric(self, name, step_metric=None):
        self.defined.append((name, step_metric))

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """The module; `calls` are the arguments of `init`, `runs` what it returned, `fails` what it raises instead."""
    module = types.ModuleType("wandb")
    module.calls, module.runs, module.fails = [], [], None
    module.errors = types.SimpleNamespace(UsageError=UsageError)
    module.Settings = lambda **settings: settings

    def init(**arguments):
        if module.fails is not None:
            raise module.fails
        module.calls.append(arguments)
        module.runs.append(FakeRun())
        return module.runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    (tmp_path / "config.json").write_text(json.dumps({"agent_name": "ppo", "experiment": {"run": {"seed": 7}}}))
    return module


OPTIONS = MetricsConfig(wandb=True, wandb_project="p", wandb_entity="team", tensorboard=False)


def test_a_run_begins_with_the_configuration_of_its_directory(wandb, tmp_path):
    WandbSink(OPTIONS, tmp_path).close()
    (call,) = wandb.calls
    assert (call["project"], call["entity"], call["name"]) == ("p", "team", tmp_path.name)
    assert call["config"]["experiment"]["run"]["seed"] == 7
    assert call["dir"] == str(tmp_path)
    assert ("*", "env_steps") in wandb.runs[0].defined


def test_a_resumed_run_continues_the_same_run_there(wandb, tmp_path):
    for _ in range(2):
        WandbSink(OPTIONS, tmp_path).close()
    first, second = wandb.calls
    assert first["id"] == second["id"] == (tmp_path / "wandb_run_id.txt").read_text().strip()
    assert second["resume"] == "allow"
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    WandbSink(OPTIONS, other).close()
    assert wandb.calls[2]["id"] != first["id"]


def test_every_number_of_a_record_is_sent_over_env_steps(wandb, tmp_path):
    sink = WandbSink(OPTIONS, tmp_path)
    sink.write(record(2, **{"loss/value": 0.5}))
    sink.close()
    sink.close()
    (run,) = wandb.runs
    expected = {"loss/value": 0.5, "update": 2, "env_steps": 128, "frames": 512, "wall_seconds": 1.0}
    assert (run.logged, run.finished) == ([expected], 1)


def test_a_missing_package_is_refused_with_the_extra_that_has_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'jaxsrl\[wandb\]'"):
        WandbSink(OPTIONS, tmp_path)


def test_nobody_logged_in_is_refused_before_anything_starts(wandb, tmp_path):
    wandb.fails = UsageError("api_key not configured")
    with pytest.raises(UserError, match="api_key not configured; log in with `wandb login`, set WANDB_MODE=offline"):
        make_sinks(OPTIONS, tmp_path, facts(), print, quiet=True)


def test_unreachable_wandb_is_logged_and_skipped(wandb, tmp_path):
    wandb.fails = TimeoutError("90 s")
    said = []
    sinks = make_sinks(OPTIONS, tmp_path, facts(), said.append, quiet=True)
    sinks.write(record(1))
    sinks.close()
    assert said == ["metrics: cannot reach Weights & Biases (90 s): training continues without it"]
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
