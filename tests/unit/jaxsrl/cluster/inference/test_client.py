"""The deadline of lost inference servers, with a pool of one lane and a clock that only the test moves."""

import types
from concurrent.futures import Future

import pytest

from envpool_bridge.errors import EnvPoolError
from jaxsrl.cluster.inference import client as module
from jaxsrl.cluster.inference.client import RemoteActing
from jaxsrl.cluster.protocol.engine import HostGoneError

LIMIT = 100.0


class Pool:
    num_lanes = 1
    shape = types.SimpleNamespace(rollout_length=4, num_slots=2, lane_rows=lambda lane: slice(0, 1))
    access = types.SimpleNamespace(act_rows=lambda *_: None)
    views = (None, None)

    def position(self, lane):
        return 1, 0

    def ready_lanes(self):
        return [0]

    def wait_acting(self, has_work, seconds):
        has_work()

    def wake(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def run_server(clock, failures, seconds, step):
    """Acts while the server fails each time that it is asked, `failures` times, each after `step` seconds."""
    asked, turns = [], []

    def ask(request):
        asked.append(Future())
        return asked[-1]

    messages = types.SimpleNamespace(remembers=False, pack_request=lambda *_: b"")
    acting = RemoteActing(Pool(), messages, {}, [0], 0, 0, LIMIT)
    acting.use(0, types.SimpleNamespace(ask=ask))
    clock[0] += seconds  # the server waits for parameters, as while a run is paused

    def should_stop():
        turns.append(clock[0])
        clock[0] += step
        if len(asked) <= failures and asked and not asked[-1].done():
            asked[-1].set_exception(HostGoneError("its node died"))
        return len(turns) > failures + 2

    acting.run(should_stop)
    return acting.failures


def test_a_server_that_is_lost_after_a_pause_has_its_time(clock):
    assert run_server(clock, 1, 10 * LIMIT, 0.25) == 1


def test_a_server_that_stays_lost_is_an_error(clock):
    with pytest.raises(EnvPoolError, match="no inference server 0 was there for 100 s: .* its node died"):
        run_server(clock, 20, 10 * LIMIT, 20.0)
