"""Threads and signals: the first error wins, everything stops, and handlers come back."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from envpool_bridge.supervisor.forkserver import STOP_SIGNALS
from jaxsrl.machine import lifecycle
from jaxsrl.machine.lifecycle import Lifecycle, exit_status, stop_on_signals


def test_lifecycle_stops_without_error():
    lifecycle = Lifecycle()
    assert not lifecycle.should_stop()
    lifecycle.raise_error()
    lifecycle.stop()
    assert lifecycle.should_stop()
    lifecycle.raise_error()


def test_the_first_of_several_errors_is_the_one_that_is_raised():
    lifecycle = Lifecycle()
    stopped = threading.Event()

    def first():
        raise RuntimeError("the cause")

    def second():
        while not lifecycle.should_stop():
            stopped.wait(0.001)
        raise ValueError("a consequence")

    lifecycle.start_thread("second", second)
    lifecycle.start_thread("first", first)
    lifecycle.join(60.0)
    with pytest.raises(RuntimeError, match="the cause"):
        lifecycle.raise_error()


def test_join_stops_the_threads_it_waits_for():
    lifecycle = Lifecycle()
    seen = []

    def works():
        while not lifecycle.should_stop():
            time.sleep(0.001)
        seen.append("stopped")

    lifecycle.start_thread("worker", works)
    lifecycle.join(60.0)
    assert seen == ["stopped"]


def test_a_signal_within_stop_waits_for_no_lock():
    """Its handler calls `stop` between any two lines of the first call, in the same thread."""
    mine, calls = Lifecycle(), []

    def trace(frame, event, _):
        if frame.f_code.co_filename in (lifecycle.__file__, threading.__file__):
            sys.settrace(None)
            calls.append(event)
            mine.stop()
            sys.settrace(trace)
        return trace

    def main():
        sys.settrace(trace)
        mine.stop()
        sys.settrace(None)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
    assert len(calls) > 1
    assert mine.should_stop()


def test_a_thread_that_does_not_stop_is_named():
    lifecycle, release = Lifecycle(), threading.Event()
    lifecycle.start_thread("stubborn", release.wait)
    try:
        with pytest.raises(TimeoutError, match=r"thread stubborn did not stop within 0.01 s"):
            lifecycle.join(0.01)
    finally:
        release.set()
    lifecycle.join(60.0)


def test_join_raises_for_a_stuck_thread_during_handling():
    lifecycle, release = Lifecycle(), threading.Event()
    lifecycle.start_thread("stubborn", release.wait)
    try:
        raise KeyError("of the caller, which trains anew")
    except KeyError:
        with pytest.raises(TimeoutError, match="thread stubborn did not stop"):
            lifecycle.join(0.01)
    finally:
        release.set()
    lifecycle.join(60.0)


def test_join_adds_a_note_about_stuck_threads_to_the_failure():
    lifecycle, release, failure = Lifecycle(), threading.Event(), ValueError("of the run")
    lifecycle.start_thread("stubborn", release.wait)
    lifecycle.join(0.01, failure=failure)
    release.set()
    lifecycle.join(60.0)
    assert failure.__notes__ == ["thread stubborn did not stop within 0.01 s"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("ReplayLostError('lost')", 75),
        ("UserError('no')", 2),
        ("BadEnvOutputError('row 0: bad reward')", 2),
        ("KeyError", 1),
        ("OtherProcessError('said')", 1),
    ],
)
def test_a_stuck_thread_does_not_change_the_exit_status(error, status):
    code = (
        "import time\n"
        "from envpool_bridge.errors import BadEnvOutputError, UserError\n"
        "from jaxsrl.cluster.protocol.engine import ReplayLostError\n"
        "from jaxsrl.machine.lifecycle import exit_on_user_error\n"
        "from jaxsrl.machine.lifecycle import Lifecycle, OtherProcessError\n"
        "lifecycle = Lifecycle()\n"
        "@exit_on_user_error\n"
        "def main():\n"
        "    lifecycle.start_thread('stuck', lambda: time.sleep(600))\n"
        "    try:\n"
        f"        raise {error}\n"
        "    except Exception as failure:\n"
        "        lifecycle.join(0.01, failure=failure)\n"
        "        raise\n"
        "main()\n"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert left.returncode == status, left.stderr
    assert left.stderr.count("\n") == 1 or error == "KeyError", left.stderr


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("print('text' * 100_000)", 141),
        ("print('text')", 141),
        ("print('text'); sys.exit(0)", 141),
        ("print('text', file=sys.stderr)", 0),
        ("os.close(theirs); os.write(ours, b'x')", 1),
    ],
    ids=["much", "little", "as --help", "nothing", "another pipe"],
)
def test_a_lost_reader_ends_it_without_a_traceback(body, status):
    code = (
        "import os, sys\n"
        "from jaxsrl.machine.lifecycle import exit_on_user_error\n"
        "@exit_on_user_error\n"
        "def main():\n"
        "    theirs, ours = os.pipe()\n"
        f"    {body}\n"
        "main()\n"
    )
    reader, writer = os.pipe()
    if status != 1:
        os.close(reader)
    ended = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=150)
    os.close(writer)
    assert ended.returncode == status, ended.stderr
    assert ("Traceback" in ended.stderr) == (status == 1), ended.stderr


@pytest.mark.parametrize("error", ["KeyError", "UserError('no')"])
def test_a_caller_that_handles_the_error_goes_on(error):
    code = (
        "import threading, time\n"
        "from envpool_bridge.errors import UserError\n"
        "from jaxsrl.machine.lifecycle import exit_on_user_error, exit_without\n"
        "handled = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (handled.wait(), time.sleep(0.5), print('complete')), daemon=True)\n"
        "@exit_on_user_error\n"
        "def main():\n"
        "    thread.start()\n"
        "    exit_without(thread, wait_seconds=60.0)\n"
        f"    raise {error}\n"
        "try:\n"
        "    main()\n"
        "except (SystemExit, KeyError):\n"
        "    handled.set()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert (ended.returncode, ended.stdout) == (0, "complete\n"), ended.stderr


@pytest.mark.parametrize("descriptor", [1, 2])
@pytest.mark.parametrize("number", sorted(STOP_SIGNALS))
def test_closed_output_pipe_keeps_the_exit_status(number, descriptor, hangup_is_heard):
    code = (
        "import os, sys\n"
        "from jaxsrl.machine.lifecycle import exit_status, stop_on_signals\n"
        "asked = []\n"
        "with stop_on_signals(asked.append):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    for stream in (sys.stdout, sys.stderr):\n"
        "        print('saves', file=stream, flush=True)\n"
        "print('stopped')\n"
        "sys.exit(exit_status(asked[0]))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with open(os.devnull, "w") as nothing:
        streams = {"stdout": writer, "stderr": nothing} if descriptor == 1 else {"stdout": nothing, "stderr": writer}
        left = subprocess.run([sys.executable, "-c", code], **streams, timeout=150)
    os.close(writer)
    assert left.returncode == exit_status(number.name)


def test_reader_exit_after_signal_keeps_the_exit_status():
    code = (
        "import os, signal, sys\n"
        "from jaxsrl.machine.lifecycle import exit_status, stop_on_signals\n"
        "reader, writer = os.pipe()\n"
        "os.dup2(writer, 1)\n"
        "os.close(writer)\n"
        "with stop_on_signals(lambda name: None):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.close(reader)\n"
        "print('stopped')\n"
        "sys.exit(exit_status('SIGINT'))\n"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert (left.returncode, left.stderr) == (130, "")


def test_grace_period_ends_with_thread_stacks():
    code = (
        "import os, signal, time\n"
        "from jaxsrl.machine.lifecycle import stop_on_signals\n"
        "def stuck_in_here(): time.sleep(60)\n"
        "with stop_on_signals(lambda name: None, 0.2):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    stuck_in_here()\n"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert left.returncode == 128 + signal.SIGTERM
    assert "the run did not stop within 0.2 s of SIGTERM" in left.stderr
    assert "stuck_in_here" in left.stderr


def test_a_run_that_stops_in_time_is_left_alone():
    with stop_on_signals(lambda name: None, 3600.0):
        os.kill(os.getpid(), signal.SIGTERM)
        (deadline,) = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    deadline.join(60.0)
    assert not deadline.is_alive()


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129), ("SIGUSR1", 75)])
def test_exit_status_encodes_the_signal_or_requeue(name, status):
    assert exit_status(name) == status


@pytest.fixture
def hangup_is_heard():
    """A test that was started by `nohup` ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", sorted(STOP_SIGNALS))
def test_a_signal_asks_once_by_name_and_the_handlers_come_back(number, hangup_is_heard):
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    asked = []
    with stop_on_signals(asked.append):
        os.kill(os.getpid(), number)
        assert asked == [number.name]
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_a_hangup_that_is_ignored_stays_ignored(hangup_is_heard):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    asked = []
    with stop_on_signals(asked.append):
        os.kill(os.getpid(), signal.SIGHUP)
    assert asked == []


def test_handlers_come_back_after_an_error_too():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="inside"), stop_on_signals(lambda name: None):
        raise RuntimeError("inside")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_leaves_at_once_with_its_status(monkeypatch):
    asked = []

    def leave(status):
        raise SystemExit(status)  # what os._exit does, as far as a test can live with it

    monkeypatch.setattr(os, "_exit", leave)
    with stop_on_signals(asked.append):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as left:
            os.kill(os.getpid(), signal.SIGINT)
    assert asked == ["SIGTERM"]
    assert left.value.code == 128 + signal.SIGINT


def test_the_same_signal_at_once_again_is_no_second_one(monkeypatch):
    now, asked = [100.0], []

    def leave(status):
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(lifecycle, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with stop_on_signals(asked.append):
        os.kill(os.getpid(), signal.SIGTERM)
        now[0] += 0.9  # `timeout` sends it to the process, and to its group
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == ["SIGTERM"]
        now[0] += 0.2
        with pytest.raises(SystemExit, match="143"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert asked == ["SIGTERM"]


def test_outside_the_main_thread_signals_stay_as_they_are():
    before, entered = signal.getsignal(signal.SIGTERM), []

    def body():
        with stop_on_signals(lambda name: None):
            entered.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert entered == [before]


STAYS = """
import os, signal, time
from jaxsrl.machine.lifecycle import stop_on_signals
with stop_on_signals(lambda name: None, timeout_seconds=0.1):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize("is_full", [False, True])
def test_a_run_that_does_not_stop_is_left_with_its_stacks(is_full):
    read, write = os.pipe()
    with open(read, "rb") as shown, open(write, "wb", buffering=0) as pipe:
        os.set_blocking(write, not is_full)
        while is_full and pipe.write(b"x" * 4096):  # nobody reads it
            pass
        os.set_blocking(write, True)
        ended = subprocess.run([sys.executable, "-c", STAYS], stderr=pipe, timeout=60, check=False)
        assert ended.returncode == 128 + signal.SIGTERM
        pipe.close()
        text = shown.read().decode().lstrip("x")
    assert ("did not stop within 0.1 s of SIGTERM; stacks of its threads:\nCurrent thread 0x" in text) == (not is_full)
