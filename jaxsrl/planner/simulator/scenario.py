"""What is simulated: sizes, places and costs. Plain frozen data; seconds and bytes throughout."""

import dataclasses

import numpy as np

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape


@dataclasses.dataclass(frozen=True)
class Costs:
    """What things take, measured on one core or device.

    Attributes:
        row_seconds: of a core, to step one environment and write what it shows.
        part_seconds: of a core, a step of all rows that a worker steps together, besides.
        step_cv: standard deviation over mean of one environment's step.
        sleep_seconds: that a step takes besides, without a core.
        doorbell_seconds: that who acts takes besides, for each worker of the lane, to wake it.
        wake_seconds: from telling a sleeping process or thread until it runs.
        act: (rows, seconds) of calls that act, in order of rows; linear between, proportional beyond.
        acts_on_device: whether acting takes the accelerator, and not a core.
        update_seconds: of an update, alone on the machine.
        update_cores: that an update keeps busy, at least 1; 0 where it takes the accelerator.
        slot_bytes: of one host's trajectory of one update.
        params_bytes: of one set of parameters; gradients are as large.
        gradients_an_update: all-reduces of gradients in an update.
    """

    row_seconds: float
    part_seconds: float
    act: tuple[tuple[int, float], ...]
    update_seconds: float
    step_cv: float = 0.0
    sleep_seconds: float = 0.0
    doorbell_seconds: float = 0.0
    wake_seconds: float = 0.0
    acts_on_device: bool = False
    update_cores: float = 0.0
    slot_bytes: float = 0.0
    params_bytes: float = 0.0
    gradients_an_update: int = 16

    def __post_init__(self) -> None:
        if not self.act:
            raise UserError("the costs of acting must have at least one (rows, seconds): got none")
        not_negative = "row_seconds", "part_seconds", "step_cv", "sleep_seconds", "doorbell_seconds", "wake_seconds"
        for name in (*not_negative, "update_seconds"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative: got {getattr(self, name)}")

    def act_seconds(self, rows: int) -> float:
        """Of one call for so many rows."""
        known, seconds = zip(*self.act, strict=True)
        if rows > known[-1]:
            return seconds[-1] * rows / known[-1]
        return float(np.interp(rows, known, seconds))


@dataclasses.dataclass(frozen=True)
class Network:
    """Between hosts. Speeds are of one direction of one host's connection.

    Attributes:
        name: of the kind of link, with its source.
        bytes_per_second: that it carries.
        latency_seconds: from end to end.
    """

    name: str
    bytes_per_second: float
    latency_seconds: float

    def all_reduce_seconds(self, num_bytes: float, members: int) -> float:
        """A ring all-reduce: 2 (n - 1) rounds, in each of which every member sends and receives a share of 1 / n.

        Source: Patarasuk and Yuan (2009), Bandwidth optimal all-reduce algorithms for clusters of workstations.
        """
        rounds = 2 * (members - 1)
        return rounds * (self.latency_seconds + num_bytes / members / self.bytes_per_second)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A plan on machines.

    Learners make each update together. Each has environment hosts; a host acts for its rows itself. Without `network` the one
    host and the learner share the host's cores, as on one machine.

    Attributes:
        shape: of one host's pool; its slots bound how far ahead a host collects.
        max_policy_lag: updates that acting may be behind.
        cores: of a host.
        costs: of everything.
        hosts: environment hosts of a learner.
        learners: in all.
        network: between a learner and its hosts; None on one machine.
        between_learners: what gradients travel over; `network` if None.
    """

    shape: PoolShape
    max_policy_lag: int
    cores: int
    costs: Costs
    hosts: int = 1
    learners: int = 1
    network: Network | None = None
    between_learners: Network | None = None

    def __post_init__(self) -> None:
        if self.network is None and self.hosts != 1:
            raise UserError(f"several environment hosts need a network: got {self.hosts} hosts without one")
        if self.learners > 1 and self.network is None and self.between_learners is None:
            raise UserError(f"several learners need a network: got {self.learners} learners without one")
        for name in ("cores", "hosts", "learners"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")

    @property
    def num_rows(self) -> int:
        """Environments in all."""
        return self.shape.num_rows * self.hosts * self.learners

    @property
    def steps_an_update(self) -> int:
        """Environment steps that one update learns from."""
        return self.num_rows * self.shape.rollout_length

    @property
    def num_cores(self) -> int:
        """Cores that step environments, in all."""
        return self.cores * self.hosts * self.learners

    def all_reduce_seconds(self) -> float:
        """Of all gradients of an update."""
        over = self.between_learners or self.network
        if self.learners == 1 or over is None:
            return 0.0
        return self.costs.gradients_an_update * over.all_reduce_seconds(self.costs.params_bytes, self.learners)
