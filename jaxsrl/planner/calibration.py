"""What was measured on a machine, as a file."""

import dataclasses
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.planner.simulator.scenario import Costs, Network, Scenario
from jaxsrl.run_directory import read_json, write_json

Points = tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Costs of an experiment's environment and agent on one machine.

    Attributes:
        experiment: name of it.
        env_id: of the environment.
        cores: that the measuring process could use.
        cpu: model of the processor.
        row_seconds: a core takes for a step of one environment and for writing what it shows.
        part_seconds: a core takes besides for a step of all rows of a worker.
        step_cv: standard deviation over mean of a step of one environment.
        act: (rows, seconds) of calls that act, with fetching and writing actions.
        update: (rows, seconds) of updates of `rollout_length` steps, each after so many steps as in a run.
        update_cores: that an update keeps busy, on average.
        update_flops: (rows, operations) of an update as the compiler counts them; () where it does not.
        rollout_length: T.
        doorbell_seconds: that who acts takes to wake one worker.
        handover_seconds: that a step takes a worker's core besides stepping; fitted to one run (`jaxsrl.planner.validate.fit`).
        copy_bytes_per_second: of memory, by one core.
        row_bytes: that a slot takes for a row, for all T steps.
        params_bytes: of one set of parameters.
    """

    experiment: str
    env_id: str
    cores: int
    cpu: str
    row_seconds: float
    part_seconds: float
    step_cv: float
    act: Points
    update: Points
    update_cores: float
    update_flops: Points
    rollout_length: int
    doorbell_seconds: float
    handover_seconds: float
    copy_bytes_per_second: float
    row_bytes: float
    params_bytes: float

    def save(self, path: Path) -> None:
        """Writes JSON."""
        write_json(path, dataclasses.asdict(self))

    def scenario(self, shape: PoolShape, max_policy_lag: int, cores: int, sleep_seconds: float = 0.0) -> Scenario:
        """A run on one machine like that of the calibration, whose learner computes on its cores."""
        seconds = cost_at(self.update, shape.num_rows) * shape.rollout_length / self.rollout_length
        costs = dataclasses.replace(self._costs(shape), update_seconds=seconds, sleep_seconds=sleep_seconds)
        return Scenario(
            shape, max_policy_lag, cores, dataclasses.replace(costs, update_cores=max(1.0, self.update_cores))
        )

    def cluster(
        self, shape: PoolShape, cores: int, hosts: int, learners: int, links: Network, gpu_flops: float
    ) -> Scenario:
        """A run at lag 1 with environment hosts like this machine's cores, and accelerators that learn.

        Args:
            shape: of a host's pool.
            cores: of a host.
            hosts: of a learner.
            learners: accelerators.
            links: between all of them.
            gpu_flops: operations per second that an update reaches on an accelerator: an assumption, not measured here.

        Raises:
            UserError: the calibration does not know the operations of an update.
        """
        if not self.update_flops:
            raise UserError("the calibration has no operation counts of updates: measure it again with --calibrate")
        rows = shape.num_rows * hosts
        seconds = cost_at(self.update_flops, rows) * shape.rollout_length / self.rollout_length / gpu_flops
        costs = dataclasses.replace(self._costs(shape), update_seconds=seconds)
        return Scenario(shape, 1, cores, costs, hosts, learners, links)

    def _costs(self, shape: PoolShape) -> Costs:
        return Costs(
            row_seconds=self.row_seconds,
            part_seconds=self.part_seconds + self.handover_seconds,
            step_cv=self.step_cv,
            act=self.act,
            doorbell_seconds=self.doorbell_seconds,
            update_seconds=0.0,
            slot_bytes=self.row_bytes * shape.num_rows * shape.rollout_length / self.rollout_length,
            params_bytes=self.params_bytes,
        )


def load_calibration(path: Path) -> Calibration:
    """The file that `Calibration.save` wrote.

    Raises:
        UserError: it is missing or no calibration.
    """
    data: dict[str, Any] = read_json(path)
    try:
        points = {
            name: tuple((int(rows), float(x)) for rows, x in data[name]) for name in ("act", "update", "update_flops")
        }
        return Calibration(**{**data, **points})
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is no calibration of this version ({error}): make one with jaxsrl plan EXPERIMENT --simulate --calibrate"
        ) from error


def cost_at(points: Points, rows: int) -> float:
    """A straight line through the two largest sizes measured, or a proportion of the one there is; never below the smallest."""
    if len(points) == 1:
        return points[0][1] * rows / points[0][0]
    (small, first), (large, second) = points[-2:]
    slope = (second - first) / (large - small)
    return max(first + slope * (rows - small), min(value for _, value in points) * min(1.0, rows / points[0][0]))
