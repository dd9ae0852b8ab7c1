"""Silence of remote processes, and the lines about it, with a clock that only the test moves."""

import types

import pytest

from envpool_bridge.options import SupervisorOptions
from jaxsrl.cluster import handle as module
from jaxsrl.cluster.handle import Handle, RestartManager

STEP, START = 5.0, 600.0
OPTIONS = SupervisorOptions(step_timeout_seconds=STEP, start_timeout_seconds=START)


class Server(Handle):
    kind, room, advice, made_progress = "server", "room", "fewer", True

    def spawn_process(self, engine, node):
        return types.SimpleNamespace(call=lambda group, method, *rest: (method, object()), kill=lambda: None)


@pytest.fixture
def clock(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


ENGINE = types.SimpleNamespace(
    check=lambda: None, wait=lambda calls, seconds: [], reserved_node=lambda *_: None, nodes=list
)


def test_the_run_says_every_30_s_what_it_waits_for(clock, caplog):
    options = SupervisorOptions(step_timeout_seconds=100.0)
    server, manager = Server(options, 0, "node", slice(0, 4)), RestartManager(ENGINE, options)
    server.spawn(ENGINE, "node")
    server.start_with(b"", None)
    for seconds, words in [(0, ""), (31, "31 s: it starts"), (29, ""), (2, "62 s: it starts")]:
        clock[0] += seconds
        manager.poll([server], server.start_with)
        assert [each.message for each in caplog.records] == [
            f"The run waits for server 0 (rows 0 to 3) on node node for {words}." for words in [words] if words
        ]
        caplog.clear()
    server.on_result(server.start_call, None)
    for seconds, words in [
        (31, "31 s: it does not answer."),
        (70, "(it did not answer for 100 s"),
        (31, "no node has room"),
    ]:
        clock[0] += seconds
        manager.poll([server], server.start_with)
        assert len(caplog.records) == 1
        assert words in caplog.records.pop().message


@pytest.mark.parametrize(("start_seconds", "answer_seconds", "lost"), [(20.0, 4.0, 0), (20.0, 6.0, 1), (601.0, 0.0, 1)])
def test_silence_counts_from_the_end_of_the_start(clock, start_seconds, answer_seconds, lost):
    server, manager = Server(OPTIONS, 0, "node", slice(0, 4)), RestartManager(ENGINE, OPTIONS)
    server.spawn(ENGINE, "node")
    server.start_with(b"", None)
    start = server.start_call
    manager.poll([server], server.start_with)  # requests stats, which come after the start
    clock[0] += start_seconds
    manager.poll([server], server.start_with)
    server.on_result(start, None)
    clock[0] += answer_seconds
    manager.poll([server], server.start_with)
    assert manager.num_lost == lost
