"""Files of requests: sent, answered, withdrawn, and never applied by a later process of the run."""

import json
import threading

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.runs.control import CONTROL, PAUSED, TRAINING, Answer, ControlFiles, Request, control_state, send_request

LONG = 60.0
SET = Request("set", "learning_rate", 0.5)


@pytest.fixture
def held(tmp_path):
    """A run directory that a process holds."""
    with RunDirectory(tmp_path):
        yield tmp_path


def answer_next(files, answer, taken):
    """Answers the next request, in a thread; `taken` receives it."""

    def serve():
        while not taken:
            for name, request in files.take():
                taken.append(request)
                files.answer(name, answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def request_files(directory):
    return [path.name for path in (directory / CONTROL).iterdir() if path.name != "session.json"]


def test_request_is_taken_once_and_answered(held):
    files, taken = ControlFiles(held), []
    thread = answer_next(files, Answer(text="done", status={"update": 3}), taken)
    assert send_request(held, SET, LONG) == Answer("", "done", {"update": 3})
    thread.join(LONG)
    assert taken == [SET]
    assert not request_files(held)


def test_rejected_request_raises_the_answer(held):
    thread = answer_next(ControlFiles(held), Answer(error="not under this plan"), [])
    with pytest.raises(UserError, match="not under this plan"):
        send_request(held, SET, LONG)
    thread.join(LONG)


def test_missing_run_is_rejected(tmp_path):
    with pytest.raises(UserError, match="no run in"):
        send_request(tmp_path / "x", SET, LONG)


def test_run_that_does_not_train_is_rejected(tmp_path):
    with RunDirectory(tmp_path):
        ControlFiles(tmp_path)  # as a killed process leaves it
    assert control_state(tmp_path) is None
    with pytest.raises(UserError, match="does not train now"):
        send_request(tmp_path, SET, LONG)
    assert not request_files(tmp_path)


def test_starting_run_is_waited_for_until_the_deadline(held):
    with pytest.raises(UserError, match="has not started"):
        send_request(held, SET, 0.2)


def test_request_that_is_not_taken_is_withdrawn(held):
    files = ControlFiles(held)
    with pytest.raises(UserError, match="withdrawn"):
        send_request(held, SET, 0.2)
    assert files.take() == []


def test_new_process_drops_requests_of_the_old_one(held):
    ControlFiles(held)
    session = json.loads((held / CONTROL / "session.json").read_text())["id"]
    early, late = (held / CONTROL / f"request-{name}.json" for name in ("early", "late"))
    text = json.dumps({"session": session, "action": "stop", "name": "", "value": 0.0})
    early.write_text(text)
    files = ControlFiles(held)
    assert not early.exists()
    late.write_text(text)
    assert files.take() == [("late", None)]


def test_command_ends_when_the_run_ends(held):
    files, errors = ControlFiles(held), []

    def send():
        try:
            send_request(held, SET, LONG)
        except UserError as error:
            errors.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    while not files.take():
        pass
    files.close()
    thread.join(LONG)
    assert "ended before it answered" in errors[0]


def test_control_state_is_that_of_the_session(held):
    assert control_state(held) is None
    files = ControlFiles(held)
    assert control_state(held) == TRAINING
    files.write_state(PAUSED)
    assert control_state(held) == PAUSED
    files.close()
    assert control_state(held) is None


TOO_DEEP, NO_TEXT = b"[" * 100_000, b"\xff\xfe{"


@pytest.mark.parametrize(
    "written", [b"", b"[]", b"{}", b'{"session": 3}', b'{"session": "x", "action": "stop"}', TOO_DEEP, NO_TEXT]
)
def test_damaged_requests_are_removed(held, written):
    files = ControlFiles(held)
    (held / CONTROL / "request-x.json").write_bytes(written)
    assert files.take() == [("x", None)]
    assert not request_files(held)


def test_request_with_a_number_too_large_is_removed(held):
    files = ControlFiles(held)
    session = json.loads((held / CONTROL / "session.json").read_text())["id"]
    data = {"session": session, "action": "set", "name": "learning_rate", "value": 10**400}
    (held / CONTROL / "request-x.json").write_text(json.dumps(data))
    assert files.take() == [("x", None)]


@pytest.mark.parametrize("written", [b"", b"[]", b"{}", b'{"holder": 3}', TOO_DEEP, NO_TEXT])
def test_damaged_session_accepts_no_requests(held, written):
    ControlFiles(held)
    (held / CONTROL / "session.json").write_bytes(written)
    assert control_state(held) is None


def test_files_that_cannot_be_written_do_not_end_the_run(held):
    (held / CONTROL).write_text("a file in the way")
    files = ControlFiles(held)
    assert files.take() == []
    files.answer("x", Answer())
    files.close()
