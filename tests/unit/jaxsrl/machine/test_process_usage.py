"""CPU time and memory by group of processes: sums, ends, new processes, and how often they are measured."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from jaxsrl.machine import process_usage
from jaxsrl.machine.process_usage import ProcessTree, usage_totals


class FakeProcess:
    """A process whose counters the test sets."""

    def __init__(self, pid, parent, command, cpu=0.0, memory=0):
        self.pid, self.parent, self.command, self.cpu, self.memory = pid, parent, command, cpu, memory
        self.below, self.has_ended = [], False

    def children(self, recursive):
        assert recursive
        return list(self.below)

    def cmdline(self):
        return self.command.split()

    def ppid(self):
        return self.parent

    def oneshot(self):
        return contextlib.nullcontext()

    def cpu_times(self):
        if self.has_ended:
            raise psutil.NoSuchProcess(self.pid)
        return SimpleNamespace(user=self.cpu * 0.75, system=self.cpu * 0.25)

    def memory_info(self):
        return SimpleNamespace(rss=self.memory)


class Tree:
    """A ProcessTree of fake processes, with its clocks."""

    def __init__(self, monkeypatch):
        self.now = self.spent = 0.0
        self.root = FakeProcess(1, 0, "python train.py", cpu=5.0, memory=100)
        server = FakeProcess(2, 1, "python -c from envpool_bridge.supervisor.forkserver import serve", memory=10)
        worker = FakeProcess(3, 2, "python -c from envpool_bridge.supervisor.forkserver import serve", 1.0, 20)
        self.game = FakeProcess(4, 3, "vizdoom", 2.0, 30)
        self.root.below = [server, worker, self.game, FakeProcess(5, 1, "ffmpeg", memory=7)]
        monkeypatch.setattr(process_usage.psutil, "Process", lambda: self.root)
        self.tree = ProcessTree(lambda: self.now, lambda: self.spent)

    def used(self):
        return {name: (each.cpu_seconds, each.memory_bytes, each.pids) for name, each in self.tree.groups.items()}


@pytest.fixture
def fakes(monkeypatch):
    return Tree(monkeypatch)


def test_programs_of_workers_are_in_their_group(fakes):
    assert fakes.used() == {"trainer": (0.0, 100, (1,)), "workers": (0.0, 60, (2, 3, 4)), "others": (0.0, 7, (5,))}


def test_cpu_time_counts_from_the_first_measurement_on(fakes):
    fakes.root.cpu, fakes.game.cpu = 6.5, 4.0
    assert fakes.tree.update()
    assert fakes.used()["trainer"][0] == pytest.approx(1.5)
    assert fakes.used()["workers"][0] == pytest.approx(2.0)
    fakes.game.has_ended = True
    late = FakeProcess(6, 1, "python -c from jaxsrl.evaluation.evaluator import serve; serve()", cpu=9.0, memory=50)
    fakes.root.below = [*fakes.root.below[:2], late]
    fakes.tree.update()
    late.cpu = 9.25
    fakes.tree.update()
    assert fakes.used()["workers"] == (pytest.approx(2.0), 30, (2, 3))  # its CPU time stays, its memory does not
    assert fakes.used()["evaluator"] == (pytest.approx(0.25), 50, (6,))


def test_measuring_takes_at_most_a_500th_of_the_time(fakes, monkeypatch):
    def expensive():
        fakes.spent += 0.01
        return SimpleNamespace(user=fakes.root.cpu, system=0.0)

    monkeypatch.setattr(fakes.root, "cpu_times", expensive)
    assert fakes.tree.update()
    fakes.now = 4.9
    assert not fakes.tree.update()
    fakes.now = 5.1
    assert fakes.tree.update()


def test_usage_of_this_process_is_what_the_kernel_says():
    command = [sys.executable, "-c", "input()  # jaxsrl.evaluation.evaluator"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        tree = ProcessTree()
        pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
        assert tree.groups["evaluator"].pids == (child.pid,)
        assert tree.groups["evaluator"].memory_bytes == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.5)
        assert tree.groups["trainer"].pids == (os.getpid(),)
        assert usage_totals()["memory_bytes"] >= tree.groups["trainer"].memory_bytes * 0.5
        child.communicate(b"\n")
