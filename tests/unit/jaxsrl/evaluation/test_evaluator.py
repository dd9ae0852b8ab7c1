"""The process of an evaluator: signals at its start, descriptors, modules of its agent, and its end."""

import os
import resource
import signal
import time

import pytest

from envpool_bridge.supervisor.forkserver import STOP_SIGNALS
from jaxsrl.evaluation.evaluator import Evaluator, EvaluatorDiedError

SECONDS = 120.0  # for what takes two seconds on a machine that does nothing else
MANY_DESCRIPTORS = 1_200
TASK = {"path": "no checkpoint", "mode": "greedy", "stage": None, "agents": "*"}


@pytest.fixture
def start(tmp_path):
    """Function that starts an evaluator of an agent, which ends with the test."""
    started = []

    def start_one(agent=None):
        started.append(Evaluator(agent, None, tmp_path / "output.txt", {}))
        return started[-1]

    yield start_one
    for evaluator in started:
        evaluator.close()


@pytest.fixture
def many_descriptors():
    """More descriptors than select.select takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * MANY_DESCRIPTORS:
        pytest.skip(f"this machine allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MANY_DESCRIPTORS), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(MANY_DESCRIPTORS)]
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def error_of(evaluator):
    """Polls until the evaluator answers or has ended, and returns what it reports."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            assert evaluator.poll() is None
        except EvaluatorDiedError as error:
            return str(error)
        time.sleep(0.01)
    pytest.fail("neither an answer nor an end")


def test_stop_signals_do_not_end_an_evaluator_that_imports(start):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    evaluator = start()
    for number in STOP_SIGNALS:  # its interpreter has hardly started
        os.kill(evaluator._process.pid, number)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    evaluator.send(TASK)
    assert "no checkpoint" in error_of(evaluator)


def test_answers_arrive_above_descriptor_1023(many_descriptors, start):
    evaluator = start()
    assert evaluator._process.stdout.fileno() > 1023
    evaluator.send(TASK)
    assert "no checkpoint" in error_of(evaluator)


def test_agents_of_modules_next_to_the_script_are_found(start, tmp_path, monkeypatch):
    (tmp_path / "module_of_a_script.py").write_text("def act():\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import module_of_a_script  # pyright: ignore[reportMissingImports]

    evaluator = start(module_of_a_script.act)
    evaluator.send(TASK)
    assert "no checkpoint" in error_of(evaluator)


class NotLoadable:
    """Agent that raises an error when the evaluator loads it."""

    def __reduce__(self):
        return int, ("not a number",)


def test_a_failed_start_is_reported_with_its_own_status(start):
    message = error_of(start(NotLoadable()))
    assert "ended with status 1" in message
    assert "ValueError: invalid literal" in message


class LeavesAProcess:
    """Agent whose loading forks a process, which keeps the pipes, and ends the evaluator."""

    def __init__(self, path):
        self.path = path

    def __setstate__(self, state):
        child = os.fork()
        if child == 0:
            time.sleep(SECONDS)
            os._exit(0)
        with open(state["path"], "w") as file:
            file.write(str(child))
        os._exit(3)


def test_an_end_is_reported_while_a_forked_process_lives(start, tmp_path):
    path = tmp_path / "child"
    evaluator = start(LeavesAProcess(str(path)))
    try:
        assert "ended with status 3" in error_of(evaluator)
    finally:
        os.kill(int(path.read_text()), signal.SIGKILL)
