"""Calibration: costs measured on a machine, stored as a file."""

import dataclasses
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.checkpoints.run_directory import read_json, write_json
from jaxsrl.planner.simulator.scenario import Costs, Network, Scenario

Points = tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Costs of an experiment's environment and agent on one machine.

    Attributes:
        experiment: name of the experiment.
        env_id: id of the environment.
        cores: cores of the measuring process.
        cpu: model of the processor.
        row_seconds: core time to step one environment and write its observation.
        part_seconds: additional core time per step of all rows of a worker.
        step_cv: standard deviation over mean of a step of one environment.
        act: (rows, seconds) of inference calls, including fetching and writing actions.
        update: (rows, seconds) of updates of `rollout_length` steps, each after the same number of steps as in a run.
        update_cores: mean number of cores that an update uses.
        update_flops: (rows, operations) of an update as counted by the compiler; () where it does not.
        rollout_length: T.
        doorbell_seconds: time of the inference server to wake one worker.
        handover_seconds: additional core time of a worker per step; fitted to one run (`jaxsrl.planner.validate.fit`).
        copy_bytes_per_second: memory copy rate of one core.
        row_bytes: bytes of a slot per row, for all T steps.
        params_bytes: bytes of one set of parameters.
        gradients_per_update: gradient steps of an update; 0 where the agent does not offer them, or their number varies.
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
    gradients_per_update: int

    def save(self, path: Path) -> None:
        """Writes the calibration as JSON."""
        write_json(path, dataclasses.asdict(self))

    def scenario(self, shape: PoolShape, max_policy_lag: int, cores: int) -> Scenario:
        """Returns a scenario on one machine like the calibration's, whose learner uses its cores."""
        seconds = cost_at(self.update, shape.num_rows) * shape.rollout_length / self.rollout_length
        costs = self._costs(shape, seconds, update_cores=max(1.0, self.update_cores))
        return Scenario(shape, max_policy_lag, cores, costs)

    def cluster(
        self, shape: PoolShape, cores: int, hosts: int, learners: int, links: Network, gpu_flops: float
    ) -> Scenario:
        """Returns a scenario at lag 1 with environment hosts like this machine's cores, and learners on accelerators.

        Args:
            shape: pool of one host.
            cores: cores per host.
            hosts: hosts per learner.
            learners: accelerators.
            links: network between all of them.
            gpu_flops: operations per second of an update on an accelerator: an assumption, not a measurement.

        Raises:
            UserError: If the calibration lacks the operations of an update, or several learners the number of its gradient steps.
        """
        if not self.update_flops:
            raise UserError("the calibration has no operation counts of updates: measure it again with --calibrate")
        if learners > 1 and not self.gradients_per_update:
            raise UserError(
                f"the all-reduces of several learners are unknown: the agent of {self.experiment} does not offer a fixed number "
                f"of gradient steps an update; predict for one GPU, or another experiment"
            )
        rows = shape.num_rows * hosts
        seconds = cost_at(self.update_flops, rows) * shape.rollout_length / self.rollout_length / gpu_flops
        return Scenario(shape, 1, cores, self._costs(shape, seconds), hosts, learners, links)

    def _costs(self, shape: PoolShape, update_seconds: float, update_cores: float = 0.0) -> Costs:
        return Costs(
            row_seconds=self.row_seconds,
            part_seconds=self.part_seconds + self.handover_seconds,
            step_cv=self.step_cv,
            act=self.act,
            doorbell_seconds=self.doorbell_seconds,
            update_seconds=update_seconds,
            update_cores=update_cores,
            slot_bytes=self.row_bytes * shape.num_rows * shape.rollout_length / self.rollout_length,
            params_bytes=self.params_bytes,
            gradients_per_update=self.gradients_per_update,
        )


def load_calibration(path: Path) -> Calibration:
    """Reads the file of `Calibration.save`.

    Raises:
        UserError: If it is missing or no calibration.
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
    """Extrapolates linearly from the two largest measured sizes, or proportionally from a single one.

    The result is at least the smallest measured cost, scaled down below the smallest size.
    """
    if len(points) == 1:
        return points[0][1] * rows / points[0][0]
    (small, first), (large, second) = points[-2:]
    slope = (second - first) / (large - small)
    return max(first + slope * (rows - small), min(value for _, value in points) * min(1.0, rows / points[0][0]))
