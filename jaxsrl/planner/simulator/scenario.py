"""Scenario of a simulation: sizes, places and costs. Plain frozen data; seconds and bytes throughout."""

import dataclasses

import numpy as np

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape


@dataclasses.dataclass(frozen=True)
class Costs:
    """Durations and sizes, measured on one core or device.

    Attributes:
        row_seconds: core time to step one environment and write its observation.
        part_seconds: additional core time per step of all rows of a worker.
        step_cv: standard deviation over mean of one environment's step.
        doorbell_seconds: additional time of the inference server to wake one worker of the lane.
        act: (rows, seconds) of inference calls, in order of rows; linear between, proportional beyond.
        update_seconds: duration of an update on an otherwise idle machine.
        update_cores: cores that an update uses, at least 1; 0 where it uses the accelerator.
        slot_bytes: bytes of one host's trajectory of one update.
        params_bytes: bytes of one set of parameters; gradients are as large.
        gradients_per_update: all-reduces of gradients per update.
    """

    row_seconds: float
    part_seconds: float
    act: tuple[tuple[int, float], ...]
    update_seconds: float
    step_cv: float = 0.0
    doorbell_seconds: float = 0.0
    update_cores: float = 0.0
    slot_bytes: float = 0.0
    params_bytes: float = 0.0
    gradients_per_update: int = 1

    def __post_init__(self) -> None:
        if not self.act:
            raise UserError("the costs of acting must have at least one (rows, seconds): got none")
        for name in ("row_seconds", "part_seconds", "step_cv", "doorbell_seconds", "update_seconds"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative: got {getattr(self, name)}")

    def act_seconds(self, rows: int) -> float:
        """Returns the seconds of one inference call for `rows` rows."""
        known, seconds = zip(*self.act, strict=True)
        if rows > known[-1]:
            return seconds[-1] * rows / known[-1]
        return float(np.interp(rows, known, seconds))


@dataclasses.dataclass(frozen=True)
class Network:
    """Network between hosts. Speeds are of one direction of one host's connection.

    Attributes:
        name: kind of the link, with its source.
        bytes_per_second: rate.
        latency_seconds: latency from end to end.
    """

    name: str
    bytes_per_second: float
    latency_seconds: float

    def all_reduce_seconds(self, num_bytes: float, members: int) -> float:
        """Returns the seconds of a ring all-reduce.

        It has 2 (n - 1) rounds. In each round every member sends and receives a share of 1 / n.
        Source: Patarasuk and Yuan (2009), Bandwidth optimal all-reduce algorithms for clusters of workstations.
        """
        rounds = 2 * (members - 1)
        return rounds * (self.latency_seconds + num_bytes / members / self.bytes_per_second)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Plan on machines.

    Learners make each update together. Each has environment hosts; a host acts for its own rows. Without `network`, the
    single host and the learner share the host's cores, as on one machine.

    Attributes:
        shape: pool of one host; its slots limit how far ahead a host collects.
        max_policy_lag: maximum policy lag, in updates.
        cores: cores per host.
        costs: durations and sizes.
        hosts: environment hosts per learner.
        learners: total number of learners.
        network: network between learners and hosts; None on one machine.
    """

    shape: PoolShape
    max_policy_lag: int
    cores: int
    costs: Costs
    hosts: int = 1
    learners: int = 1
    network: Network | None = None

    def __post_init__(self) -> None:
        if self.network is None and self.hosts != 1:
            raise UserError(f"several environment hosts need a network: got {self.hosts} hosts without one")
        if self.learners > 1 and self.network is None:
            raise UserError(f"several learners need a network: got {self.learners} learners without one")
        for name in ("cores", "hosts", "learners"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")

    @property
    def num_rows(self) -> int:
        """Total number of environments."""
        return self.shape.num_rows * self.hosts * self.learners

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update."""
        return self.num_rows * self.shape.rollout_length

    @property
    def num_cores(self) -> int:
        """Total number of cores that step environments."""
        return self.cores * self.hosts * self.learners

    def all_reduce_seconds(self) -> float:
        """Returns the seconds of all gradient all-reduces of an update."""
        if self.learners == 1 or self.network is None:
            return 0.0
        return self.costs.gradients_per_update * self.network.all_reduce_seconds(self.costs.params_bytes, self.learners)


_GIGABIT = 1e9 / 8

NETWORKS = {
    "10gbe": Network("10 Gb/s Ethernet, TCP (IEEE 802.3ae; 50 us assumed)", 10 * _GIGABIT, 50e-6),
    "100gbe": Network("100 Gb/s Ethernet, TCP (IEEE 802.3ba; 30 us assumed)", 100 * _GIGABIT, 30e-6),
    "hdr": Network("InfiniBand HDR, 200 Gb/s a port (NVIDIA ConnectX-6; 5 us assumed)", 200 * _GIGABIT, 5e-6),
    "ndr": Network("InfiniBand NDR, 400 Gb/s a port (NVIDIA ConnectX-7; 5 us assumed)", 400 * _GIGABIT, 5e-6),
}
"""Published line rates by name: one direction of one host's connection. Latency is from process to process, for a few kilobytes."""
