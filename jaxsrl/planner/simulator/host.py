"""Environment host: workers that step, lanes that wait for actions, an inference server, slots that fill."""

from collections import deque
from collections.abc import Callable

import numpy as np

from jaxsrl.planner.simulator.events import Clock, Processor
from jaxsrl.planner.simulator.scenario import Scenario

_DRAWN = 4096


class Host:
    """One pool and its server.

    Args:
        scenario: sizes and costs.
        clock: clock of the simulation.
        processor: processor of this host.
        seed: seed of step times.
        slot_full: called with each sequence when all rows have filled it.

    Attributes:
        worker_busy_seconds: time from start to end of steps, summed over all workers.
        server_busy_seconds: time from start to end of inference calls.
    """

    def __init__(
        self,
        scenario: Scenario,
        clock: Clock,
        processor: Processor,
        seed: int,
        slot_full: Callable[[int], None],
    ) -> None:
        self._shape, self._costs, self._clock = scenario.shape, scenario.costs, clock
        self._lag = scenario.max_policy_lag
        self._processor, self._slot_full = processor, slot_full
        shape = self._shape
        self._factors = _step_factors(seed, scenario.costs.step_cv, shape.rows_per_part)
        self._drawn = 0
        costs = scenario.costs
        self._act_seconds = costs.act_seconds(shape.rows_per_lane) + costs.doorbell_seconds * shape.workers_per_lane
        self._version, self._released = 0, 0
        self._steps = [0] * shape.num_lanes  # actions given
        self._missing = [0] * shape.num_lanes  # parts of the lane that have not stepped yet
        self._early: list[int] = []  # lanes that wait for parameters
        self._no_slot: list[int] = []  # parts that wait for a free slot
        self._ready: deque[int] = deque()
        self._todo: list[deque[int]] = [deque() for _ in range(shape.num_workers)]
        self._stepping = [False] * shape.num_workers
        self._acting = False
        self._filled: dict[int, int] = {}
        self.worker_busy_seconds = self.server_busy_seconds = 0.0

    def start(self) -> None:
        """Provides the first observation of all rows."""
        for lane in range(self._shape.num_lanes):
            self._lane_observed(lane)

    def publish(self, version: int) -> None:
        """Receives parameters."""
        self._version = version
        early, self._early = self._early, []
        for lane in early:
            self._lane_observed(lane)

    def release(self, num_sequences: int) -> None:
        """Releases slots: `num_sequences` since the start."""
        self._released = num_sequences
        blocked, self._no_slot = self._no_slot, []
        for part in blocked:
            self._part_observed(part)

    def _lane_observed(self, lane: int) -> None:
        if self._version < self._steps[lane] // self._shape.rollout_length - self._lag:
            self._early.append(lane)
            return
        self._ready.append(lane)
        if not self._acting:
            self._acting = True
            self._clock.after(0.0, self._act)

    def _act(self) -> None:
        if not self._ready:
            self._acting = False
            return
        lane, start = self._ready.popleft(), self._clock.now
        self._processor.work(self._act_seconds, lambda: self._acted(lane, start))

    def _acted(self, lane: int, start: float) -> None:
        self.server_busy_seconds += self._clock.now - start
        self._steps[lane] += 1
        self._missing[lane] = self._shape.workers_per_lane
        for part in self._shape.parts_of_lane(lane):
            worker = self._shape.worker_of_part(part)
            self._todo[worker].append(part)
            if not self._stepping[worker]:
                self._stepping[worker] = True
                self._clock.after(0.0, lambda worker=worker: self._step(worker))
        self._act()

    def _step(self, worker: int) -> None:
        if not self._todo[worker]:
            self._stepping[worker] = False
            return
        part, start, costs = self._todo[worker].popleft(), self._clock.now, self._costs
        self._drawn = (self._drawn + 1) % _DRAWN
        work = costs.part_seconds + costs.row_seconds * self._shape.rows_per_part * float(self._factors[self._drawn])

        def stepped() -> None:
            self.worker_busy_seconds += self._clock.now - start
            self._part_stepped(part)
            self._step(worker)

        self._processor.work(work, stepped)

    def _part_stepped(self, part: int) -> None:
        done = self._steps[self._shape.lane_of_part(part)]
        sequence, left = divmod(done, self._shape.rollout_length)
        if not left:  # the last step of a slot
            self._filled[sequence - 1] = self._filled.get(sequence - 1, 0) + 1
            if self._filled[sequence - 1] == self._shape.num_parts:
                del self._filled[sequence - 1]
                self._slot_full(sequence - 1)
        self._part_observed(part)

    def _part_observed(self, part: int) -> None:
        lane = self._shape.lane_of_part(part)
        if self._steps[lane] // self._shape.rollout_length >= self._released + self._shape.num_slots:
            self._no_slot.append(part)
            return
        self._missing[lane] -= 1
        if not self._missing[lane]:
            self._lane_observed(lane)


def _step_factors(seed: int, cv: float, rows: int) -> np.ndarray:
    """Returns factors of mean 1 for the step times of consecutive environments, lognormal in each."""
    if not cv:
        return np.ones(_DRAWN)
    sigma = np.sqrt(np.log1p(cv**2))
    draws = np.random.default_rng(seed).lognormal(-(sigma**2) / 2, sigma, (_DRAWN, rows))
    return draws.mean(1)
