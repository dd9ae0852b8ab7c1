"""The entrance of learner processes: who is rejected, with which words, and that the others go on."""

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners import gate as module
from jaxsrl.cluster.learners.gate import Gate, describe_gone, enter, validate_own_name
from jaxsrl.config.parts import DistributedConfig
from jaxsrl.machine.lifecycle import RequeueError

IDENTITY = {"experiment": {"run": {"seed": 0, "directory": "here"}}, "source": "a", "python": "3.11"}


@pytest.fixture
def address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def process(address, number, count=2, seconds=30):
    return DistributedConfig(address, count, number, start_seconds=seconds)


@contextlib.contextmanager
def gate_of(address, count=2):
    gate = Gate(process(address, 0, count), IDENTITY)
    try:
        yield gate
    finally:
        gate.close()
        for _, connection in gate._members.values():
            connection.close()


@pytest.fixture
def join():
    """Joins as `enter` does; the connections end with the test."""
    joined = []

    def enter_until_the_end(*arguments):
        service, members = enter(*arguments)
        joined.extend(connection for _, connection in members.values())
        return service, members

    yield enter_until_the_end
    for connection in joined:
        connection.close()


@pytest.mark.parametrize(
    ("number", "count", "identity", "words"),
    [
        (1, 3, {}, "expects 3 learner processes, process 0 expects 2"),
        (1, 2, {"source": "b"}, "source: 'b' -> 'a'|source: 'a' -> 'b'"),
        (1, 2, {"python": "3.12"}, "python: "),
        (1, 2, {"experiment": {"run": {"seed": 7}}}, "experiment.run.seed: 0 -> 7"),
    ],
)
def test_another_run_is_rejected_and_the_right_process_joins(join, address, number, count, identity, words):
    with gate_of(address) as gate, ThreadPoolExecutor() as threads:
        waits = threads.submit(gate.wait)
        with pytest.raises(UserError, match=words) as error:
            join(process(address, number, count), {**IDENTITY, **identity})
        assert "\n" not in str(error.value)
        own = {**IDENTITY, "experiment": {"run": {"seed": 0, "directory": "there"}}}
        service, members = join(process(address, 1), own)
        assert (service, list(members)) == (gate.service, [0])
        assert list(waits.result(10)) == [1]


@pytest.mark.parametrize("is_started", [False, True])
def test_a_second_process_of_a_number_is_rejected(join, address, is_started):
    with gate_of(address, 2 if is_started else 3) as gate, ThreadPoolExecutor() as threads:
        waits = threads.submit(gate.wait) if is_started else None
        first = threads.submit(join, process(address, 1, gate._config.num_processes), IDENTITY)
        while 1 not in gate._members or (waits is not None and not waits.done()):
            time.sleep(0.01)
        with pytest.raises(UserError, match=r"process 1 of this run is already there \(process \d+ on .*, started "):
            join(process(address, 1, gate._config.num_processes), IDENTITY)
        if not is_started:
            last = threads.submit(join, process(address, 2, 3), IDENTITY)
            assert list(gate.wait()) == [1, 2]
            last.result(10)
        assert first.result(10)[0] == gate.service


def test_a_process_that_ended_before_the_start_leaves_its_place(join, address):
    with gate_of(address) as gate, ThreadPoolExecutor() as threads:
        killed = socket.create_connection(module._address(process(address, 1)))
        module._send(killed, {"process": 1, "num_processes": 2, "name": "killed", "identity": IDENTITY})
        while 1 not in gate._members:
            time.sleep(0.01)
        killed.close()
        while 1 in gate._members:
            time.sleep(0.01)
        waits = threads.submit(gate.wait)
        _, members = join(process(address, 1), IDENTITY)
        there = waits.result(10)
        assert describe_gone(there) == ""
        members[0][1].close()
        while not describe_gone(there):
            time.sleep(0.01)
        assert describe_gone(there).startswith("learner process 1 (process ")


def test_addresses_that_are_no_processs_own_are_rejected(join, address):
    with gate_of(address), pytest.raises(UserError, match="does another process 0 run here"):
        Gate(process(address, 0), IDENTITY)
    with pytest.raises(UserError, match="expected an address of this machine"):
        Gate(process("192.0.2.1:7777", 0), IDENTITY)
    with pytest.raises(UserError, match="no-such-host.invalid:7777 is unknown here"):
        join(process("no-such-host.invalid:7777", 1), IDENTITY)
    with pytest.raises(UserError, match="must be HOST:PORT"):
        process("localhost:99999999", 1)


@pytest.mark.parametrize("own", ["127.0.1.1", ""])
def test_a_name_of_the_loopback_interface_is_rejected(monkeypatch, own):
    def resolve(name, port, **options):
        if name == "this" and not own:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (own if name == "this" else name, 0))]

    monkeypatch.setattr(socket, "gethostname", lambda: "this")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    validate_own_name(process("127.0.0.1:7777", 1))  # the others are here too
    with pytest.raises(UserError, match=r"expected the line `[\d.]+ this` in /etc/hosts"):
        validate_own_name(process("192.0.2.1:7777", 1))


def test_processes_wait_no_longer_than_the_start_may_take(join, address):
    with pytest.raises(RequeueError, match="did not all come to .* within 1 s: it waits for process 0"):
        join(process(address, 1, seconds=1), IDENTITY)
    with gate_of(address, 3) as gate:
        gate._config = process(address, 0, 3, seconds=1)
        with pytest.raises(RequeueError, match="it waits for learner process 1, 2"):
            gate.wait()
