"""CPU time and memory of this process and of those that it started, by what they do."""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence

import psutil

TRAINER, WORKERS, EVALUATOR, OTHERS = "trainer", "workers", "evaluator", "others"
# A measurement that cost t seconds of CPU time is repeated after 500 t: all of them take 0.2 % of a core.
_COST_RATIO = 500.0
_KINDS = (
    ("ray::RayHost", "hosts"),
    ("ray::RayServer", "inference_servers"),
    ("ray::RayReplay", "replay"),
    ("envpool_bridge.supervisor.forkserver", WORKERS),
    ("jaxsrl.evaluation.evaluator", EVALUATOR),
    ("ray::", "ray"),
    ("/ray/", "ray"),
)
"""Texts of command lines, and the groups of these processes. The first that matches counts."""


@dataclasses.dataclass
class GroupUsage:
    """Usage by the processes of one group.

    Attributes:
        cpu_seconds: CPU time since the first measurement, of processes that have ended too.
        memory_bytes: resident memory, the sum over living processes. Shared memory counts in each process that uses it.
        pids: Pids of the living processes.
    """

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    pids: tuple[int, ...] = ()


class ProcessTree:
    """Tree of this process and its descendants. Thread-safety: one thread.

    The list of processes, and their usage, are measured again only when that is cheap compared with the time since.

    Args:
        clock: returns seconds of wall time.
        cost: returns seconds of CPU time of this thread.

    Attributes:
        groups: usage by group, as of the last measurement: "trainer" is this process, "workers" the processes of environments.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cost: Callable[[], float] = time.thread_time
    ) -> None:
        self.groups: dict[str, GroupUsage] = {}
        self._root = psutil.Process()
        self._members: dict[psutil.Process, str] = {}
        self._cpu_before: dict[psutil.Process, float] = {}
        self._list, self._read = (_Rarely(each, clock, cost) for each in (self._list_members, self._read_members))
        self.update()

    def update(self) -> bool:
        """Measures again unless the last measurement is too recent; returns whether it did."""
        self._list()
        return self._read()

    def _list_members(self) -> None:
        parents = {self._root.pid: TRAINER}
        members = {self._root: TRAINER}
        for process in self._root.children(recursive=True):  # parents come before their children
            group = self._members.get(process)
            try:
                group = group or _group_of(process.cmdline(), parents.get(process.ppid(), OTHERS))
            except psutil.Error:  # it has just ended
                continue
            members[process] = parents[process.pid] = group
        self._members = members

    def _read_members(self) -> None:
        usage = {group: GroupUsage(each.cpu_seconds) for group, each in self.groups.items()}
        for process, group in self._members.items():
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                continue
            before, now = self._cpu_before.get(process), times.user + times.system
            self._cpu_before[process] = now
            each = usage.setdefault(group, GroupUsage())
            each.cpu_seconds += max(0.0, now - before) if before is not None else 0.0
            each.memory_bytes += memory
            each.pids += (process.pid,)
        self._cpu_before = {
            process: seconds for process, seconds in self._cpu_before.items() if process in self._members
        }
        self.groups = usage


class _Rarely:
    """A measurement that is skipped where it would take a measurable share of the time."""

    def __init__(self, measure: Callable[[], None], clock: Callable[[], float], cost: Callable[[], float]) -> None:
        self._measure, self._clock, self._cost = measure, clock, cost
        self._due_at = -float("inf")

    def __call__(self) -> bool:
        """Measures if that is due; returns whether it did."""
        now = self._clock()
        if now < self._due_at:
            return False
        start = self._cost()
        self._measure()
        self._due_at = now + _COST_RATIO * (self._cost() - start)
        return True


def _group_of(command: Sequence[str], parent: str) -> str:
    """Returns the group of a process by its command line; otherwise that of its parent."""
    text = " ".join(command)
    return next((group for part, group in _KINDS if part in text), OTHERS if parent == TRAINER else parent)


_LOCK = threading.Lock()


@functools.cache
def _tree_of_this_process() -> ProcessTree:
    return ProcessTree()


def usage_totals() -> dict[str, float]:
    """Returns `cpu_seconds` and `memory_bytes` of this process and its descendants together; from any thread."""
    with _LOCK:
        tree = _tree_of_this_process()
        tree.update()
        groups = tree.groups.values()
        return {
            "cpu_seconds": sum(each.cpu_seconds for each in groups),
            "memory_bytes": float(sum(each.memory_bytes for each in groups)),
        }
