"""Coordination of learner processes, each in a thread, over a dictionary in place of jax's service."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners.coordinator import ProcessCoordinator
from tests.support.run_configs import run_config

WAIT_SECONDS = 10.0


class Service:
    """Keys and barriers that processes share."""

    def __init__(self, num_processes):
        self.num_processes, self.texts, self._changed = num_processes, {}, threading.Condition()
        self.barrier = threading.Barrier(num_processes, timeout=WAIT_SECONDS)

    def send(self, key, text):
        with self._changed:
            self.texts[key] = text
            self._changed.notify_all()

    def wait_for(self, key):
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.texts, WAIT_SECONDS), key
            return self.texts[key]

    def coordinator(self, process_id):
        processes = SimpleNamespace(
            is_main=process_id == 0,
            process_id=process_id,
            num_processes=self.num_processes,
            send=self.send,
            wait_for=self.wait_for,
            wait_at_barrier=self.barrier.wait,
        )
        return ProcessCoordinator(processes, run_config(num_envs=2, rollout_length=2, total_env_steps=4))


def run_together(num_processes, body):
    """The results of `body(coordinator, process_id)` at every process, or the errors that it raised."""
    service = Service(num_processes)
    with ThreadPoolExecutor(num_processes) as pool:
        calls = [pool.submit(body, service.coordinator(each), each) for each in range(num_processes)]
        return [call.exception() or call.result() for call in calls]


def identity(seed, directory):
    return {"experiment": {"run": {"seed": seed, "directory": directory}, "distributed": {"process_id": directory}}}


def test_coordinator_accepts_equal_experiments():
    results = run_together(3, lambda coordinator, each: coordinator.validate_identity(identity(0, str(each))))
    assert results == [None, None, None]


def test_every_process_rejects_different_experiments():
    seeds = [0, 7, 0]
    errors = run_together(3, lambda coordinator, each: coordinator.validate_identity(identity(seeds[each], "runs")))
    assert [type(error) for error in errors] == [UserError] * 3
    for error in errors:
        assert "process 1 was started with another experiment than process 0" in str(error)
        assert "run.seed: 0 -> 7" in str(error)
        assert "process 2" not in str(error)


@pytest.mark.parametrize("decision", [True, False])
def test_decide_returns_the_decision_of_process_0(decision):
    def decide_twice(coordinator, each):
        return [coordinator.decide(own == decision if each == 0 else own != decision) for own in (True, False)]

    assert run_together(2, decide_twice) == [[decision, not decision]] * 2
