"""Time, processors that are shared, and links, of a simulation. No real time passes and nothing is random here."""

import heapq
import itertools
from collections.abc import Callable

Callback = Callable[[], None]


class Clock:
    """Simulated seconds, and what happens when.

    Attributes:
        now: seconds since the simulation began.
    """

    def __init__(self) -> None:
        """At 0, with nothing to come."""
        self.now = 0.0
        self._coming: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()

    def after(self, seconds: float, callback: Callback) -> None:
        """Calls back when so many seconds have passed; events of one moment come in the order they were asked for."""
        heapq.heappush(self._coming, (self.now + seconds, next(self._order), callback))

    def run(self, is_over: Callable[[], bool], max_events: int) -> int:
        """Lets events happen until `is_over()`, which is asked after each; returns how many happened.

        Raises:
            RuntimeError: nothing is left to happen, or `max_events` have: what is simulated is stuck, or too large.
        """
        for number in range(1, max_events + 1):
            if not self._coming:
                raise RuntimeError(f"the simulation is stuck at {self.now:.6f} s: nothing is left to happen")
            self.now, _, callback = heapq.heappop(self._coming)
            callback()
            if is_over():
                return number
        raise RuntimeError(f"the simulation is not over after {max_events:,} events: simulate fewer updates or workers")


class Processor:
    """Cores that work shares evenly: with n jobs on c cores each runs at min(1, c / n) of its speed, as under a fair scheduler."""

    def __init__(self, clock: Clock, cores: int) -> None:
        """Idle; `cores` at least 1."""
        self._clock, self._cores = clock, cores
        self._jobs: list[tuple[float, int, Callback]] = []  # by the served seconds at which they are done
        self._order = itertools.count()
        self._served = 0.0  # seconds of work that every job that was there all the time has got
        self._since = 0.0
        self._turn = 0
        self.busy_core_seconds = 0.0

    def work(self, seconds: float, done: Callback) -> None:
        """Calls back when a job has got so many seconds of a core."""
        self._advance()
        heapq.heappush(self._jobs, (self._served + seconds, next(self._order), done))
        self._expect()

    def _advance(self) -> None:
        passed = self._clock.now - self._since
        active = len(self._jobs)
        if active:
            self._served += passed * min(1.0, self._cores / active)
            self.busy_core_seconds += passed * min(active, self._cores)
        self._since = self._clock.now

    def _expect(self) -> None:
        """Asks for the end of the job that is done next, as things are; what was asked for before is void."""
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
        self._served = max(self._served, at)  # what was lost to rounding
        self._expect()
        done()


class Device:
    """Something that does one job at a time, in order, beside the processors: an accelerator, or one direction of a link."""

    def __init__(self, clock: Clock) -> None:
        """Idle."""
        self._clock, self._free_at = clock, 0.0
        self.busy_seconds = 0.0

    def work(self, seconds: float, done: Callback) -> None:
        """Calls back when the job is done, after those that came before it."""
        self._free_at = max(self._free_at, self._clock.now) + seconds
        self.busy_seconds += seconds
        self._clock.after(self._free_at - self._clock.now, done)


class Link:
    """One direction of a network connection: items one after the other at a rate, each underway for a latency."""

    def __init__(self, clock: Clock, bytes_per_second: float, latency_seconds: float) -> None:
        """Empty."""
        self._clock, self._rate, self._latency = clock, bytes_per_second, latency_seconds
        self._line = Device(clock)

    @property
    def busy_seconds(self) -> float:
        """That bytes took."""
        return self._line.busy_seconds

    def send(self, num_bytes: float, arrived: Callback) -> None:
        """Calls back when the last byte is there."""
        self._line.work(num_bytes / self._rate, lambda: self._clock.after(self._latency, arrived))
