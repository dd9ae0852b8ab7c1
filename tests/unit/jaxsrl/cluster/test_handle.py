"""Silence of remote processes, with a clock that only the test moves."""

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


@pytest.mark.parametrize(("start_seconds", "answer_seconds", "lost"), [(20.0, 4.0, 0), (20.0, 6.0, 1), (601.0, 0.0, 1)])
def test_silence_counts_from_the_end_of_the_start(monkeypatch, start_seconds, answer_seconds, lost):
    clock = [100.0]
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    engine = types.SimpleNamespace(check=lambda: None, wait=lambda calls, seconds: [], reserved_node=lambda *_: None)
    server, manager = Server(OPTIONS, 0, "node", slice(0, 4)), RestartManager(engine, OPTIONS)
    server.spawn(engine, "node")
    server.start_with(b"", None)
    start = server.start_call
    manager.poll([server], server.start_with)  # requests stats, which come after the start
    clock[0] += start_seconds
    manager.poll([server], server.start_with)
    server.on_result(start, None)
    clock[0] += answer_seconds
    manager.poll([server], server.start_with)
    assert manager.num_lost == lost
