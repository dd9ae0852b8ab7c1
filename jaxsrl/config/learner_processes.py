"""Configuration of the learner processes of a run."""

import dataclasses

from envpool_bridge.errors import UserError

AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Learner processes that train one agent together. Each starts with the same experiment; process 0 writes the run.

    Attributes:
        coordinator: HOST:PORT of process 0, which listens on that address alone; "auto" reads the environment variables of Slurm,
            Kubernetes or Open MPI; "" for a run of one process.
        num_processes: of the run; detected with "auto".
        process_id: of this one, from 0; detected with "auto".
        local_devices: accelerators of its host that this process uses, by number; () for all, or those the scheduler assigned.
            Processes that share a host need different ones.
        start_seconds: longest wait for the other processes at the start.
        wait_seconds: longest wait for the other processes before an update; then the run ends. It includes replaying environments
            of a resumed run.
        lost_seconds: time without a sign of life after which a process counts as lost and the run ends. A broken connection is
            detected at once.
    """

    coordinator: str = ""
    num_processes: int = 0
    process_id: int = -1
    local_devices: tuple[int, ...] = ()
    start_seconds: int = 300
    wait_seconds: int = 600
    lost_seconds: int = 30

    def __post_init__(self) -> None:
        for name in ("start_seconds", "wait_seconds", "lost_seconds"):
            if getattr(self, name) < 1:
                raise UserError(f"run.distributed.{name} must be at least 1: got {getattr(self, name)}")
        if len(set(self.local_devices)) < len(self.local_devices) or min(self.local_devices, default=0) < 0:
            raise UserError(
                f"distributed.local_devices must be different numbers from 0: got {list(self.local_devices)}; give every "
                f"process of a host its own, --distributed.local-devices 0 for the first"
            )
        given = self.num_processes, self.process_id
        if not self.coordinator or self.coordinator == AUTO:
            if given != (0, -1):
                raise UserError(
                    f"distributed.num_processes and process_id need distributed.coordinator HOST:PORT: got "
                    f"{given[0]} and {given[1]} with coordinator {self.coordinator!r}"
                )
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(f"distributed.coordinator must be HOST:PORT or auto: got {self.coordinator!r}")
        if self.num_processes < 1 or not 0 <= self.process_id < self.num_processes:
            raise UserError(
                f"with distributed.coordinator, num_processes must be at least 1 and process_id from 0 to one less: got "
                f"{given[0]} and {given[1]}"
            )

    @property
    def is_on(self) -> bool:
        """Returns whether the run has, or may have, several processes."""
        return bool(self.coordinator)
