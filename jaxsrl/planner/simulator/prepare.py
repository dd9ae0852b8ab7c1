"""Simulation of a learner whose samples are prepared on devices of their own (`jaxsrl.learner.sample_preparer`)."""

from jaxsrl.planner.simulator.events import Clock, Device

_MAX_EVENTS = 10_000_000


def simulate_prepare(
    gradient_seconds: float, prepare_seconds: float, num_devices: int, lag: int, steps_per_update: int, updates: int = 8
) -> float:
    """Returns gradient steps per second. Sample n of an update is requested before its gradient step max(0, n - lag).

    Examples:
        >>> round(simulate_prepare(1.0, 3.0, num_devices=2, lag=0, steps_per_update=10), 3)
        0.25

    Args:
        gradient_seconds: Time of a gradient step without preparation.
        prepare_seconds: Time to prepare a sample, with its way there and back.
        num_devices: Number of devices that prepare, in turns; 0 lets the learner do it.
        lag: gradient steps by which their parameters may be behind.
        steps_per_update: gradient steps of an update; the next one starts without prepared samples.
        updates: Updates to simulate.
    """
    clock = Clock()
    learner = Device(clock)
    preparers = [Device(clock) for _ in range(num_devices)] or [learner]
    steps, total = 0, steps_per_update * updates
    requested = finished = 0
    ready: set[int] = set()

    def request() -> None:
        nonlocal requested
        end = steps - steps % steps_per_update + steps_per_update
        while requested < min(end, steps + (lag if num_devices else 0) + 1):
            number, requested = requested, requested + 1
            preparers[number % len(preparers)].work(prepare_seconds, lambda number=number: prepared(number))

    def prepared(number: int) -> None:
        ready.add(number)
        if number == steps:
            learner.work(gradient_seconds, learned)

    def learned() -> None:
        nonlocal steps, finished
        steps += 1
        if steps == total:
            finished = 1
            return
        request()
        if steps in ready:
            learner.work(gradient_seconds, learned)

    request()
    clock.run(lambda: bool(finished), _MAX_EVENTS)
    return total / clock.now
