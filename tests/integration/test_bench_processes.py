"""Processes that benchmarks start: each has a deadline, and nothing is left of them however a benchmark ends."""

import signal
import subprocess
import sys
import time

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.bench.processes import answering_processes, run_module, speed_of_all
from tests.chaos.sessions import begin_session, end_session, members, seconds_until_gone

TRAINS = "from jaxsrl.bench.one_run import run_apart; run_apart({'workers': 2, 'env_steps': 10**9})"
SLOW = pytest.mark.slow
HEEDS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=SLOW), pytest.param(signal.SIGTERM, marks=SLOW), signal.SIGKILL]
)
def test_a_benchmark_that_is_stopped_leaves_no_process(number):
    main = begin_session(HEEDS + TRAINS, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120.0
        while len(members(main.pid)) < 5:
            assert time.monotonic() < deadline
            assert main.poll() is None
            time.sleep(0.02)
        main.send_signal(number)
        main.wait(60)
        seconds_until_gone(main.pid, 60.0)
    finally:
        end_session(main)


def test_a_process_that_takes_too_long_is_ended_with_a_message():
    with pytest.raises(RuntimeError, match=r"one_run .* failed: expected an end within 1 s"):
        run_module("jaxsrl.bench.one_run", {"env_steps": 10**9}, 1.0)


@pytest.mark.slow
def test_run_module_reports_user_errors():
    with pytest.raises(UserError, match=r"^unknown environment id 'CartPol-v1'"):
        run_module("jaxsrl.bench.one_run", {"env": {"id": "CartPol-v1"}}, 300.0)


def test_run_module_reports_failure_cause():
    with pytest.raises(RuntimeError, match="(?s)one_run .*ended with exit status 1:.*unexpected keyword .*'shoe'"):
        run_module("jaxsrl.bench.one_run", {"shoe": 43}, 300.0)


@pytest.mark.parametrize(
    ("last", "message"), [("time.sleep(600)", "expected an answer within"), ("sys.exit(3)", "its process ended")]
)
def test_a_process_that_does_not_answer_is_an_error(last, message):
    code = f"import sys, time\nprint('ready', flush=True)\nsys.stdin.readline()\nprint(2.5, flush=True)\n{last}"
    with answering_processes([[sys.executable, "-c", code]] * 2, "a rival") as processes:
        assert speed_of_all(processes, 0.0) == 5.0
        with pytest.raises(RuntimeError, match=f"a rival failed: {message}"):
            processes[0].receive(0.2 if "sleep" in last else 60.0)


def test_a_process_that_does_not_start_is_an_error():
    with (
        pytest.raises(RuntimeError, match="its process ended"),
        answering_processes([[sys.executable, "-c", ""]], "a rival"),
    ):
        pass
