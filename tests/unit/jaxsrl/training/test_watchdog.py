"""The deadline of a run: what counts as progress, pauses of the process, and other deadlines beside it."""

import dataclasses
import threading
from types import SimpleNamespace

import pytest

from envpool_bridge.supervisor.supervisor import SupervisionTotals
from jaxsrl.cluster.learners.coordinator import ProcessCoordinator
from jaxsrl.collect.collector import supervision_metrics
from jaxsrl.metrics.cluster_traffic import HOSTS_LOST, SERVERS_LOST
from jaxsrl.training import watchdog as watchdog_module
from jaxsrl.training.coordinator import Coordinator
from jaxsrl.training.train import TrainingLoop
from jaxsrl.training.watchdog import StalledError, Watchdog
from tests.support.run_configs import run_config

FAILURES = {field.name for field in dataclasses.fields(SupervisionTotals)} - {"replayed_steps"}


def make_loop(totals, coordinator=None):
    config = run_config(stall_timeout_seconds=1800.0, checkpoint_max_to_keep=1)
    directory = SimpleNamespace(checkpoints=None, log=lambda line: None)
    setup = SimpleNamespace(config=config, directory=directory)
    return TrainingLoop(setup, SimpleNamespace(totals=lambda: totals), coordinator or Coordinator())


def counts_of(totals):
    return make_loop(totals).counts()


@pytest.mark.parametrize("failure", sorted(FAILURES))
def test_failures_of_environments_are_no_progress(failure):
    before, after = SupervisionTotals(), SupervisionTotals(**{failure: 3})
    assert counts_of(supervision_metrics([before])) == counts_of(supervision_metrics([after]))


@pytest.mark.parametrize("failure", [HOSTS_LOST, SERVERS_LOST, "inference/failures", "inference/requests"])
def test_failures_of_a_cluster_are_no_progress(failure):
    assert counts_of({failure: 1.0}) == counts_of({failure: 2.0})


@pytest.mark.parametrize(
    "name",
    [
        *("inference/calls", "inference/rows", "env/replayed_steps_total", "replay/samples", "server/gradients"),
        *("cluster/a/env_steps", "cluster/a/slots", "cluster/a/samples"),
    ],
)
def test_work_is_progress(name):
    assert counts_of({name: 1.0}) != counts_of({name: 2.0})


def test_the_time_in_which_the_process_is_paused_does_not_count(monkeypatch):
    now, pause = [0.0], threading.Event()
    monkeypatch.setattr(watchdog_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Watchdog, "_leave", lambda self: None)
    watchdog = Watchdog(0.4, lambda: {}, lambda is_waiting: ["a waits for b"], lambda text: None)

    def wait_for_turn():
        for _ in range(6000):
            if watchdog._turn == now[0]:
                return
            pause.wait(0.01)
        raise AssertionError("the watching thread takes no turns")

    def stall():
        for _ in range(7):
            now[0] += 0.1
            wait_for_turn()
            watchdog.check()

    with watchdog.watching():
        now[0] = 100.0  # SIGSTOP, SIGCONT
        watchdog.check()  # the main thread runs first
        wait_for_turn()
        watchdog.check()
        with pytest.raises(StalledError, match="a waits for b"):
            stall()


def test_learner_processes_wait_until_the_stall_timeout():
    config = run_config(distributed_wait_seconds=600)
    coordinator = ProcessCoordinator(SimpleNamespace(is_main=True), config)
    assert make_loop({}, coordinator)._watchdog._limit == 2400.0
    assert make_loop({})._watchdog._limit == 1800.0
