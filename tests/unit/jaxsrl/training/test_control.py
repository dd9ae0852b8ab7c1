"""The callback that answers requests: what it does, and what it says where the run cannot."""

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.runs.control import Answer, Request
from jaxsrl.training.control import Control


class PlayedRun:
    """A run that notes what it is asked to do."""

    def __init__(self, directory, is_saved=True, pause_error=""):
        self.directory, self.num_updates, self.env_steps = directory, 7, 70
        self.values = {"learning_rate": 0.5}
        self.calls, self.lines, self.stopped = [], [], False
        self._is_saved, self._pause_error = is_saved, pause_error
        self.while_paused = []

    def log(self, line):
        self.lines.append(line)

    def should_stop(self):
        return self.stopped

    def stop(self, reason):
        self.stopped = True
        self.calls.append(("stop", reason))

    def save(self):
        self.calls.append("save")
        return self._is_saved

    def set_value(self, name, value):
        if name not in self.values:
            raise UserError(f"unknown value {name}")
        self.values = {name: value}

    def validate_control(self, action):
        if self._pause_error:
            raise UserError(self._pause_error)

    def wait(self, seconds):
        self.calls.append("wait")
        self.while_paused.pop(0)()


class PlayedFiles:
    """Requests that wait, and answers."""

    def __init__(self):
        self.requests, self.answers, self.states = [], [], []

    def take(self):
        taken, self.requests = [("x", request) for request in self.requests], []
        return taken

    def answer(self, name, answer):
        self.answers.append(answer)

    def write_state(self, state):
        self.states.append(state)

    def close(self):
        self.states.append("closed")


@pytest.fixture
def files(monkeypatch):
    played = PlayedFiles()
    monkeypatch.setattr("jaxsrl.training.control.ControlFiles", lambda directory: played)
    return played


def ask(run, files, *requests):
    """Returns the answers to requests that come together."""
    control = Control()
    control.on_start(run)
    files.requests = [request if request is None else Request(*request) for request in requests]
    control.on_update(run)
    return files.answers


def test_status_changes_nothing(tmp_path, files):
    run = PlayedRun(tmp_path)
    status = {"state": "training", "update": 7, "env_steps": 70, "values": {"learning_rate": 0.5}}
    assert ask(run, files, ("status",)) == [Answer("", "training at update 7", status)]
    assert not run.calls
    assert not run.lines


def test_pause_waits_until_resume_and_answers_meanwhile(tmp_path, files):
    run = PlayedRun(tmp_path)
    run.while_paused = [
        lambda: None,
        lambda: files.requests.extend([Request("status"), Request("save")]),
        lambda: files.requests.append(Request("resume")),
    ]
    answers = ask(run, files, ("pause",))
    assert [answer.status["state"] for answer in answers] == ["paused", "paused", "paused", "training"]
    assert run.calls == ["wait", "wait", "save", "wait"]
    assert files.states == ["paused", "training"]


def test_stop_ends_a_pause(tmp_path, files):
    run = PlayedRun(tmp_path)
    run.while_paused = [lambda: files.requests.append(Request("stop"))]
    ask(run, files, ("pause",))
    assert run.calls == ["wait", ("stop", "requested by control")]


def test_signal_ends_a_pause(tmp_path, files):
    run = PlayedRun(tmp_path)
    run.while_paused = [lambda: setattr(run, "stopped", True)]
    ask(run, files, ("pause",))
    assert run.calls == ["wait"]


def test_set_changes_the_value(tmp_path, files):
    run = PlayedRun(tmp_path)
    (answer,) = ask(run, files, ("set", "learning_rate", 0.25))
    assert answer.status["values"] == run.values == {"learning_rate": 0.25}
    assert run.lines == ["control: set learning_rate to 0.25 after update 7"]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (("set", "rate", 1.0), "unknown value rate"),
        (("pause",), "cannot pause"),
        (("save",), "was not written"),
        (("dance",), "status, pause, resume, save, stop, set"),
        (None, "sent to this process"),
    ],
)
def test_impossible_requests_are_answered_and_the_run_continues(tmp_path, files, request_, error):
    run = PlayedRun(tmp_path, is_saved=False, pause_error="this plan cannot pause")
    (answer,) = ask(run, files, request_)
    assert error in answer.error
    assert not run.stopped
    assert not files.states


def test_requests_are_read_at_most_twice_a_second(tmp_path, files, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    control, run = Control(), PlayedRun(tmp_path)
    control.on_start(run)
    control.on_update(run)
    files.requests = [Request("status")]
    now[0] += 0.4
    control.on_update(run)
    assert not files.answers
    now[0] += 0.2
    control.on_update(run)
    assert len(files.answers) == 1
    control.close()
    assert files.states == ["closed"]
