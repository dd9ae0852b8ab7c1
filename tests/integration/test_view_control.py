"""Buttons of the web page that control a run: over HTTP with a run that trains, and pressed in a real browser."""

import contextlib
import threading

import pytest

from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.runs.control import Answer, ControlFiles
from tests.integration.headless_chromium import chromium, find_chromium
from tests.integration.test_control import SECONDS, start, wait_until_trains  # noqa: F401  a fixture
from tests.integration.test_view import ask_json, post_control, viewing
from tests.integration.view_runs import make_run

pytestmark = pytest.mark.slow


def test_page_controls_a_run_that_trains(start, tmp_path):  # noqa: F811
    process = start()
    wait_until_trains(tmp_path, process)
    with viewing(tmp_path) as (_, url):

        def state():
            return next(run["control"] for run in ask_json(url, "api/runs")["runs"] if run["name"] == "run")

        assert state() == "training"
        status, paused = post_control(url, "run", "pause")
        assert status == 200
        assert paused.get("status", paused)["state"] == state() == "paused"
        status, changed = post_control(url, "run", "set", "entropy_coef_factor", 0.25)
        assert changed["text"] == f"set entropy_coef_factor to 0.25 after update {paused['status']['update']}"
        assert changed["status"]["values"]["entropy_coef_factor"] == 0.25
        status, rejected = post_control(url, "run", "set", "learning_rate", 0.25)
        assert (status, "unknown value" in rejected["error"]) == (200, True)
        assert post_control(url, "run", "save")[0] == 200
        assert CheckpointStore(tmp_path / "run" / "checkpoints").steps() == [paused["status"]["update"]]
        assert post_control(url, "run", "resume")[1]["status"]["state"] == "training"
        assert post_control(url, "run", "stop")[0] == 200
        assert process.wait(SECONDS) == 0
        status, rejected = post_control(url, "run", "pause")
        assert (status, "does not train now" in rejected["error"], state()) == (200, True, None)


@contextlib.contextmanager
def answering(directory):
    """Answers requests as a run between two updates does; yields the list of those that came."""
    files, requests, ended = ControlFiles(directory), [], threading.Event()

    def answer():
        values, state = {"learning_rate_factor": 1.0, "entropy_coef_factor": 1.0}, "training"
        while not ended.wait(0.05):
            for name, request in files.take():
                requests.append((request.action, request.name, request.value))
                state = {"pause": "paused", "resume": "training"}.get(request.action, state)
                files.write_state(state)
                if request.action == "set":
                    values[request.name] = request.value
                error = "it must not be negative" if request.value < 0 else ""
                status = {"state": state, "update": 5, "env_steps": 640, "values": values}
                files.answer(name, Answer(error, f"did {request.action}", {} if error else status))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield requests
    finally:
        ended.set()
        thread.join()
        files.close()


def press(page, label):
    """Presses a button that can be seen."""
    page.js(
        "[...document.querySelectorAll('.control button')]"
        f".find((one) => one.textContent === {label!r} && one.offsetParent).click()"
    )


@pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine: apt-get install chromium")
def test_buttons_control_a_run(tmp_path):
    pytest.importorskip("websockets", reason="drives Chromium: pip install websockets")
    live = make_run(tmp_path / "steered", updates=5, log="begins")
    said = "document.querySelector('.control [role=status]').innerText"
    with contextlib.ExitStack() as held:
        _, url = held.enter_context(viewing(tmp_path))
        page = held.enter_context(chromium(find_chromium())).open_page()
        trains = held.enter_context(contextlib.ExitStack())
        trains.enter_context(RunDirectory(live))
        requests = trains.enter_context(answering(live))
        page.open(f"{url}#/run/steered")
        page.wait_for("document.querySelectorAll('.control option').length === 2")
        press(page, "Pause")
        page.wait_for(f"{said} === 'did pause'")
        press(page, "Resume")
        page.wait_for(f"{said} === 'did resume'")
        press(page, "Save")
        page.wait_for(f"{said} === 'did save'")
        choose = "(() => { document.querySelector('.control select').value = 'entropy_coef_factor';"
        page.js(choose + " document.querySelector('.control input').value = '0.5'; })()")
        press(page, "Set")
        page.wait_for(f"{said} === 'did set'")
        page.js("document.querySelector('.control input').value = '-1'")
        press(page, "Set")
        page.wait_for(f"{said} === 'Rejected: it must not be negative'")
        press(page, "Stop")
        assert "Stop the run?" in page.js("document.querySelector('.control').innerText")
        press(page, "Keep training")
        assert "Stop the run?" not in page.js("document.querySelector('.control').innerText")
        assert requests == [
            ("status", "", 0.0),
            ("pause", "", 0.0),
            ("resume", "", 0.0),
            ("save", "", 0.0),
            ("set", "entropy_coef_factor", 0.5),
            ("set", "entropy_coef_factor", -1.0),
        ]
        press(page, "Stop")
        press(page, "Stop the run")
        page.wait_for(f"{said} === 'did stop'")
        assert requests[-1][0] == "stop"
        trains.close()
        page.wait_for(
            "document.querySelectorAll('.control button').length && !document.querySelector('.control .row').offsetParent"
        )
        assert page.js("document.querySelector('.control').innerText") == "did stop"
        assert page.problems == []
