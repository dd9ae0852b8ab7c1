"""Simulated time, shared processors and links. Deterministic; no real time passes."""

import heapq
import itertools
from collections.abc import Callable

Callback = Callable[[], None]


class Clock:
    """Simulated time and its event queue.

    Attributes:
        now: seconds since the start of the simulation.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._coming: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()

    def after(self, seconds: float, callback: Callback) -> None:
        """Calls back after some seconds; simultaneous events run in the order of their requests."""
        heapq.heappush(self._coming, (self.now + seconds, next(self._order), callback))

    def run(self, is_over: Callable[[], bool], max_events: int) -> int:
        """Runs events until `is_over()`, which is called after each; returns their number.

        Raises:
            RuntimeError: If the queue is empty or `max_events` have run: the scenario is stuck or too large.
        """
        for number in range(1, max_events + 1):
            if not self._coming:
                raise RuntimeError(f"the simulation is stuck at {self.now:.6f} s: no events are left")
            self.now, _, callback = heapq.heappop(self._coming)
            callback()
            if is_over():
                return number
        raise RuntimeError(f"the simulation is not over after {max_events:,} events: simulate fewer updates or workers")


class Processor:
    """Cores that are shared evenly: n jobs on c cores each run at min(1, c / n) of full speed, as under a fair scheduler."""

    def __init__(self, clock: Clock, cores: int) -> None:
        self._clock, self._cores = clock, cores
        self._jobs: list[tuple[float, int, Callback]] = []  # ordered by the served seconds at which they end
        self._order = itertools.count()
        self._served = 0.0  # seconds of work that a job present from the start would have received
        self._since = 0.0
        self._turn = 0
        self.busy_core_seconds = 0.0

    def work(self, seconds: float, done: Callback) -> None:
        """Calls back when a job has received some seconds of a core."""
        self._advance()
        heapq.heappush(self._jobs, (self._served + seconds, next(self._order), done))
        self._schedule()

    def _advance(self) -> None:
        passed = self._clock.now - self._since
        active = len(self._jobs)
        if active:
            self._served += passed * min(1.0, self._cores / active)
            self.busy_core_seconds += passed * min(active, self._cores)
        self._since = self._clock.now

    def _schedule(self) -> None:
        """Schedules the end of the next job under the current load; cancels earlier schedules."""
        self._turn += 1
        if self._jobs:
            turn, rate = self._turn, min(1.0, self._cores / len(self._jobs))
            left = max(0.0, self._jobs[0][0] - self._served) / rate
            self._clock.after(left, lambda: self._end(turn))

    def _end(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._advance()
        at, _, done = heapq.heappop(self._jobs)
        self._served = max(self._served, at)  # corrects rounding
        self._schedule()
        done()


class Device:
    """Resource that runs one job at a time, in order: an accelerator, or one direction of a link."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._free_at = clock, 0.0
        self.busy_seconds = 0.0

    def work(self, seconds: float, done: Callback) -> None:
        """Calls back when the job is done, after all earlier ones."""
        self._free_at = max(self._free_at, self._clock.now) + seconds
        self.busy_seconds += seconds
        self._clock.after(self._free_at - self._clock.now, done)


class Link:
    """One direction of a network connection: items are sent one after another at a rate, and arrive after a latency."""

    def __init__(self, clock: Clock, bytes_per_second: float, latency_seconds: float) -> None:
        self._clock, self._rate, self._latency = clock, bytes_per_second, latency_seconds
        self._line = Device(clock)

    @property
    def busy_seconds(self) -> float:
        """Seconds in which bytes were sent."""
        return self._line.busy_seconds

    def send(self, num_bytes: float, arrived: Callback) -> None:
        """Calls back when the last byte has arrived."""
        self._line.work(num_bytes / self._rate, lambda: self._clock.after(self._latency, arrived))
