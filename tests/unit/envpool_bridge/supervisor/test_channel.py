"""The parent's end of a worker's connection: whole messages only, in order, and never a wait for the rest of one."""

import socket
import threading
from multiprocessing.connection import Connection

import pytest

from envpool_bridge.supervisor import channel
from envpool_bridge.supervisor.channel import WorkerChannel


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    parent, worker = WorkerChannel(ours, 0.05), Connection(theirs.detach())
    yield parent, worker
    parent.close()
    worker.close()


def frame(message):
    """Bytes that `Connection.send` writes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(theirs.detach())
        connection.send(message)
        connection.close()
        return ours.makefile("rb").read()


def test_messages_arrive_whole_in_both_directions(ends):
    parent, worker = ends
    for message in ("one", ("two", 2), b"x" * 10_000):
        worker.send(message)
    assert parent.receive() == ["one", ("two", 2), b"x" * 10_000]
    assert parent.receive() == []
    parent.send({"to": "the worker"}, parent.receive)
    assert worker.recv() == {"to": "the worker"}


def test_channel_returns_complete_messages_without_blocking():
    ours, theirs = socket.socketpair()
    parent, data = WorkerChannel(ours, 1.0), frame("before") + frame(["a", "message"])
    with theirs:
        received = []
        for byte in data:
            theirs.sendall(bytes([byte]))
            received.append(parent.receive())
    parent.close()
    assert [messages for messages in received if messages] == [["before"], [["a", "message"]]]
    assert received[-1] == [["a", "message"]]


def test_a_message_whose_length_takes_eight_bytes(ends, monkeypatch):
    parent, worker = ends
    monkeypatch.setattr(channel, "_MAX_LENGTH", 3)  # such a message would be of 2 GiB
    parent.send("a long message", parent.receive)
    assert worker.recv() == "a long message"
    ours, theirs = socket.socketpair()
    with theirs:
        ordinary = frame("a long message")
        theirs.sendall(b"\xff\xff\xff\xff" + len(ordinary[4:]).to_bytes(8, "big") + ordinary[4:])
        other = WorkerChannel(ours, 1.0)
        assert other.receive() == ["a long message"]
        other.close()


def test_channel_returns_messages_received_before_the_end(ends):
    parent, worker = ends
    worker.send("last words")
    worker.close()
    assert parent.receive() == ["last words"]
    assert parent.receive() == []


def test_a_worker_that_does_not_read_ends_a_send(ends):
    parent, _ = ends
    with pytest.raises(BlockingIOError):
        parent.send(b"x" * 10_000_000, parent.receive)


def test_both_ends_can_send_large_messages_to_each_other():
    ours, theirs = socket.socketpair()
    parent, worker, received = WorkerChannel(ours, 60.0), Connection(theirs.detach()), []

    def answer():
        worker.send(b"y" * 5_000_000)
        received.append(worker.recv())

    thread = threading.Thread(target=answer)
    thread.start()
    answers = []
    parent.send(b"x" * 5_000_000, lambda: answers.extend(parent.receive()))
    thread.join()
    assert received == [b"x" * 5_000_000]
    assert answers == [b"y" * 5_000_000]
    parent.close()
    worker.close()


class UnloadableError(Exception):
    """Its pickle lacks an argument of the constructor."""

    def __init__(self, a, b):
        super().__init__(a)


def test_unreadable_message_is_replaced_by_its_error(ends):
    parent, worker = ends
    for message in ("before", UnloadableError(1, 2), "after"):
        worker.send(message)
    before, error, after = parent.receive()
    assert (before, type(error), after) == ("before", TypeError, "after")
    assert parent.receive() == []


def test_discarded_messages_are_not_loaded():
    ours, theirs = socket.socketpair()
    parent = WorkerChannel(ours, 1.0)
    with theirs:
        theirs.sendall(frame(UnloadableError(1, 2)) + frame("partial")[:-1])
        parent.discard()
        assert not parent.has_ended
        assert parent.receive() == []
    parent.discard()
    assert parent.has_ended
    parent.close()
