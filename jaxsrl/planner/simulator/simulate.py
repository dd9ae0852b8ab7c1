"""Simulation of learners and their hosts for some updates: env steps per second, and busy shares."""

import dataclasses

from jaxsrl.planner.simulator.events import Clock, Device, Link, Processor
from jaxsrl.planner.simulator.host import Host
from jaxsrl.planner.simulator.scenario import Costs, Scenario

_WARM_UP = 4
_MAX_EVENTS = 30_000_000


@dataclasses.dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation.

    Attributes:
        env_steps_per_second: Env steps per second of all learners together.
        updates_per_second: Updates per second of all learners together.
        busy: busy share of workers (mean), servers (mean), the learner and its links, by name.
        limit: name of the largest busy share.
        events: number of simulated events.
    """

    env_steps_per_second: float
    updates_per_second: float
    busy: dict[str, float]
    limit: str
    events: int


class _Learner:
    """One learner and its hosts."""

    def __init__(self, scenario: Scenario, clock: Clock, seed: int, group: "_LearnerGroup") -> None:
        self._scenario, self._clock, self._group = scenario, clock, group
        network = scenario.network
        processors = [Processor(clock, scenario.cores) for _ in range(scenario.hosts)]
        self.device = Device(clock)
        self._cores = processors[0] if network is None else None
        self.into = self.out_of = None
        if network is not None:
            self.into = Link(clock, network.bytes_per_second, network.latency_seconds)
            self.out_of = Link(clock, network.bytes_per_second, network.latency_seconds)
        self.hosts = [
            Host(scenario, clock, processor, seed * 10_000 + number, self._slot_full)
            for number, processor in enumerate(processors)
        ]
        self.busy_seconds = 0.0
        self.ready_for = 0  # updates whose trajectories have arrived
        self._arrived: dict[int, int] = {}

    def start(self) -> None:
        for host in self.hosts:
            host.start()

    def _slot_full(self, sequence: int) -> None:
        if self.into is None:
            self._slot_came(sequence)
        else:
            self.into.send(self._scenario.costs.slot_bytes, lambda: self._slot_came(sequence))

    def _slot_came(self, sequence: int) -> None:
        self._arrived[sequence] = self._arrived.get(sequence, 0) + 1
        if self._arrived[sequence] == len(self.hosts):
            del self._arrived[sequence]
            self._clock.after(0.0, self._is_ready)

    def _is_ready(self) -> None:
        self.ready_for += 1
        self._group.learner_is_ready()

    def update(self) -> None:
        """Starts an update; reports its end to the group."""
        costs, start = self._scenario.costs, self._clock.now
        jobs = _jobs(costs)
        left = [len(jobs)]

        def part_done() -> None:
            left[0] -= 1
            if not left[0]:
                self.busy_seconds += self._clock.now - start
                self._group.learner_is_done()

        for seconds in jobs:
            if costs.update_cores and self._cores is not None:
                self._cores.work(seconds, part_done)
            else:
                self.device.work(seconds, part_done)

    def publish(self, version: int) -> None:
        """Sends parameters and releases slots."""
        for host in self.hosts:
            if self.out_of is None:
                host.publish(version)
                host.release(version)
            else:
                self.out_of.send(self._scenario.costs.params_bytes, lambda host=host: host.publish(version))
                self._clock.after(self._scenario.network.latency_seconds, lambda host=host: host.release(version))  # pyright: ignore


def _jobs(costs: Costs) -> list[float]:
    """Returns the seconds of the threads of an update: together they use `update_cores` cores for its duration."""
    whole, part = divmod(max(1.0, costs.update_cores), 1.0)
    return [costs.update_seconds] * int(whole) + [part * costs.update_seconds] * (part > 0)


class _LearnerGroup:
    """Group of learners. Each update starts when all are ready, and ends with the all-reduce."""

    def __init__(self, scenario: Scenario, simulated_learners: int) -> None:
        self.clock = Clock()
        self._scenario = scenario
        self.learners = [_Learner(scenario, self.clock, seed, self) for seed in range(simulated_learners)]
        self.updates = 0
        self._done, self._updating = 0, False
        self._all_reduce = scenario.all_reduce_seconds()

    def learner_is_ready(self) -> None:
        if self._updating or any(learner.ready_for <= self.updates for learner in self.learners):
            return
        self._updating = True
        for learner in self.learners:
            learner.update()

    def learner_is_done(self) -> None:
        self._done += 1
        if self._done == len(self.learners):
            self._done = 0
            self.clock.after(self._all_reduce, self._published)

    def _published(self) -> None:
        self.updates, self._updating = self.updates + 1, False
        for learner in self.learners:
            learner.publish(self.updates)
        self.learner_is_ready()


def simulate(scenario: Scenario, updates: int = 30, max_learners: int = 2) -> SimulationResult:
    """Runs the scenario.

    Args:
        scenario: scenario to run.
        updates: updates of the measurement, after a warm-up.
        max_learners: learners that are simulated individually; others are assumed to be no slower than the slowest of these.
    """
    group = _LearnerGroup(scenario, min(scenario.learners, max_learners))
    for learner in group.learners:
        learner.start()
    clock = group.clock
    events = clock.run(lambda: group.updates >= _WARM_UP, _MAX_EVENTS)
    before, since = _busy(group, scenario), clock.now
    events += clock.run(lambda: group.updates >= _WARM_UP + updates, _MAX_EVENTS)
    seconds, after = clock.now - since, _busy(group, scenario)
    busy = {name: (after[name] - before[name]) / seconds for name in after}
    if scenario.learners > 1:
        busy["all-reduce"] = scenario.all_reduce_seconds() * updates / seconds
    rate = updates / seconds
    return SimulationResult(rate * scenario.steps_per_update, rate, busy, max(busy, key=busy.__getitem__), events)


def _busy(group: _LearnerGroup, scenario: Scenario) -> dict[str, float]:
    """Returns the busy seconds so far, of one resource of each kind."""
    learners = len(group.learners)
    hosts = [host for learner in group.learners for host in learner.hosts]
    seconds = {
        "workers": sum(host.worker_busy_seconds for host in hosts) / len(hosts) / scenario.shape.num_workers,
        "acting": sum(host.server_busy_seconds for host in hosts) / len(hosts),
        "learner": sum(learner.busy_seconds for learner in group.learners) / learners,
    }
    if scenario.network is not None:
        seconds["trajectories' link"] = sum(each.into.busy_seconds for each in group.learners if each.into) / learners
        seconds["parameters' link"] = sum(each.out_of.busy_seconds for each in group.learners if each.out_of) / learners
    return seconds
