"""Several processes, played by threads that meet at a barrier, always stop before the same update."""

import threading

import numpy as np
import pytest

from jaxsrl.cluster.learners.stop_consensus import StopConsensus


class Room:
    """What processes share: a barrier and the texts that were sent."""

    def __init__(self, num_processes: int) -> None:
        self.barrier = threading.Barrier(num_processes, timeout=60)
        self.texts: dict[str, str] = {}


class Played:
    """A process of a room."""

    def __init__(self, room: Room, process_id: int) -> None:
        self.process_id, self._room = process_id, room

    def send(self, key: str, text: str) -> None:
        self._room.texts[key] = text

    def received(self, prefix: str) -> dict[str, str]:
        return {
            key.removeprefix(prefix): text for key, text in dict(self._room.texts).items() if key.startswith(prefix)
        }

    def wait_at_barrier(self) -> None:
        self._room.barrier.wait()


def updates_of(wishes: dict[int, list[tuple[int, str]]], processes: int, limit: int) -> list[tuple[int, str]]:
    """(updates made, why it stopped) of each process; wishes[p] are (before which update, signal)."""
    room = Room(processes)
    found: list[tuple[int, str]] = [(-1, "")] * processes

    def run(process: int) -> None:
        consensus = StopConsensus(Played(room, process))
        for update in range(limit):
            for when, name in wishes.get(process, []):
                if when == update:
                    consensus.request_stop(name)
            if not consensus.should_continue():
                found[process] = update, consensus.stopped_by
                return
        found[process] = limit, ""

    threads = [threading.Thread(target=run, args=(process,)) for process in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_without_a_request_no_process_stops():
    assert updates_of({}, processes=3, limit=20) == [(20, "")] * 3


def test_a_request_of_one_stops_all_before_the_same_update():
    assert updates_of({1: [(7, "SIGTERM")]}, processes=3, limit=20) == [(7, "SIGTERM")] * 3


def test_several_requests_name_one_signal():
    wishes = {0: [(4, "SIGINT")], 2: [(4, "SIGTERM")]}
    assert updates_of(wishes, processes=3, limit=20) == [(4, "SIGTERM")] * 3  # 15 is more than 2


def test_a_sentence_stops_all_processes_unless_a_signal_came():
    sentence = "the return reaches 3"
    assert updates_of({1: [(7, sentence)]}, processes=3, limit=20) == [(7, sentence)] * 3
    assert updates_of({0: [(4, sentence)], 2: [(4, "SIGINT")]}, processes=3, limit=20) == [(4, "SIGINT")] * 3


@pytest.mark.parametrize("seed", range(8))
def test_requests_at_any_time_stop_before_the_same_update(seed):
    draw = np.random.default_rng(seed)
    wishes = {process: [(int(draw.integers(0, 30)), "SIGUSR1")] for process in range(4) if draw.random() < 0.6}
    found = updates_of(wishes, processes=4, limit=40)
    assert len(set(found)) == 1
    assert found[0][0] == min((when for requests in wishes.values() for when, _ in requests), default=40)


def test_a_late_request_waits_for_the_next_barrier():
    room = Room(1)
    consensus = StopConsensus(Played(room, 0))
    room.texts["jaxsrl/stop/1"] = "1 SIGTERM"  # process 1 is past meeting 0 already, and wishes before meeting 1
    assert consensus.should_continue()
    assert not consensus.should_continue()
    assert consensus.stopped_by == "SIGTERM"
