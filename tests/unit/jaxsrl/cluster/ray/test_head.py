"""Calls of a head that answers or does not, in place of Ray's."""

import threading
import time
import types

import pytest

from jaxsrl.cluster.protocol.engine import ClusterLostError
from jaxsrl.cluster.ray import head as module
from jaxsrl.cluster.ray import local_cluster
from jaxsrl.cluster.ray.head import Head
from jaxsrl.cluster.ray.local_nodes import ENVIRONMENT, RECONNECT

SECONDS = 0.05


@pytest.fixture
def silence(monkeypatch):
    """An event at which a head answers that is silent until then."""
    monkeypatch.setattr(module, "_LOST_SECONDS", SECONDS)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    monkeypatch.delenv(RECONNECT, raising=False)
    event = threading.Event()
    yield event
    event.set()


def head_of(nodes):
    return Head(types.SimpleNamespace(nodes=nodes, is_initialized=lambda: True))


def check_until(head, done):
    deadline = time.monotonic() + 20.0
    while not done():
        head.check()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_calls_return_what_the_head_answers(silence):
    head = head_of(list)
    assert head.call(lambda: 7) == 7
    with pytest.raises(KeyError):
        head.call(lambda: {}["none"])


def test_a_call_of_a_silent_head_is_an_error(silence):
    head = head_of(list)
    with pytest.raises(ClusterLostError, match=r"did not answer for 0.05 s.*The same command resumes"):
        head.call(silence.wait)
    with pytest.raises(ClusterLostError):
        head.call(lambda: pytest.fail("it is lost"))


def test_a_silent_head_is_noticed_once_without_a_wait(silence, monkeypatch):
    monkeypatch.setattr(module, "wait", lambda results, seconds: types.SimpleNamespace(not_done=results))
    head, looks = head_of(lambda: looks.append(1) or silence.wait()), []
    with pytest.raises(ClusterLostError):
        check_until(head, lambda: False)
    head.check()  # the run saves
    assert looks == [1]


def test_a_head_that_answers_is_asked_again(silence):
    looks = []
    check_until(head_of(lambda: looks.append(1)), lambda: len(looks) > 2)


def test_an_answer_that_comes_after_a_pause_counts(silence):
    head = head_of(silence.wait)
    head.check()
    time.sleep(2 * SECONDS)  # the process is paused
    silence.set()
    head.check()


def test_the_deadline_is_half_of_that_of_the_user(monkeypatch):
    monkeypatch.setenv(RECONNECT, "240")
    assert head_of(list)._limit == 120.0


def test_ray_waits_longer_than_a_run_in_a_cluster_that_is_joined(monkeypatch):
    monkeypatch.delenv(RECONNECT, raising=False)
    found = []
    ray = types.SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **_: found.append(module.os.environ[RECONNECT]),
        shutdown=lambda: None,
    )
    monkeypatch.setattr(local_cluster, "import_ray", lambda *_: ray)
    monkeypatch.setattr(local_cluster, "read_again", lambda: None)
    with local_cluster.joined_cluster():
        assert RECONNECT not in module.os.environ
    assert [float(seconds) for seconds in found] == [float(ENVIRONMENT[RECONNECT])]
    assert float(found[0]) > 10 * module._LOST_SECONDS
