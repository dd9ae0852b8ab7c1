"""Fragments and channels: the parts of the dataflow and the edges between them, as frozen data.

Source of the terms: MSRL (Zhu et al., USENIX ATC 2023).
"""

import dataclasses
import enum


class FragmentKind(enum.Enum):
    """Role of a fragment."""

    ENVIRONMENT = "environment"
    INFERENCE = "inference"
    REPLAY = "replay"
    PREPARE = "prepare"
    DATASET = "dataset"
    LEARNER = "learner"
    PARAMETER_SERVER = "parameter_server"


class Carries(enum.Enum):
    """Content of a channel."""

    OBSERVATIONS = "observations"
    ACTIONS = "actions"
    TRAJECTORIES = "trajectories"
    SAMPLES = "samples"
    PRIORITIES = "priorities"
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"


class Transport(enum.Enum):
    """Mechanism of a channel."""

    IN_PROCESS = "in_process"
    SHARED_RING = "shared_ring"
    SHARED_BLOCK = "shared_block"
    DEVICE_COPY = "device_copy"
    OBJECT_STORE = "object_store"
    CALLS = "calls"


class WhenFull(enum.Enum):
    """Behavior of a source whose channel holds `capacity` items."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


@dataclasses.dataclass(frozen=True)
class InProcess:
    """Placement in the main process, on its CPU cores."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """Placement of each replica in processes of its own.

    Attributes:
        count: processes of one replica.
        cores: CPU cores to which they are pinned in turn, over all replicas; () for no pinning.
    """

    count: int
    cores: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Devices:
    """Placement on devices of the main process.

    Attributes:
        indices: into the devices of `platform`, divided evenly over the replicas in order.
        platform: "cpu" for the CPU of a host with an accelerator; "" for jax's default platform.
    """

    indices: tuple[int, ...]
    platform: str = ""

    def of_replica(self, replica: int, replicas: int) -> tuple[int, ...]:
        """Returns the indices of one replica: its share, or a single one if there are fewer indices than replicas."""
        share = len(self.indices) // replicas
        if share == 0:
            return (self.indices[replica % len(self.indices)],)
        return self.indices[replica * share : (replica + 1) * share]


Placement = InProcess | Processes | Devices

EACH_GROUP = "*"
"""Group of a learner that is split into one for each learning policy if there are enough devices."""


@dataclasses.dataclass(frozen=True)
class Fragment:
    """Part of the dataflow that runs in one place.

    Attributes:
        name: unique in its plan.
        kind: Role of the fragment.
        replicas: copies that share the rows evenly, in order.
        placement: Placement of the replicas.
        group: policy that this learner trains, from the rows of that policy's agents; "" for all policies; EACH_GROUP before
            `jaxsrl.plan.passes.policy_groups` divides it.
        nodes: cluster node of each replica; () for the machine of the main process.
    """

    name: str
    kind: FragmentKind
    replicas: int
    placement: Placement
    group: str = ""
    nodes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Channel:
    """Edge of the dataflow: its content, its maximum staleness and its back-pressure.

    Attributes:
        source: name of the writing fragment.
        target: name of the reading fragment.
        carries: Content of the channel.
        transport: Mechanism of the channel.
        capacity: items in flight before `when_full` applies.
        when_full: behavior of the source at `capacity`.
        max_lag: versions by which parameters of the reader, or of a gradient, may be stale. 0 waits for the newest; 1 overlaps by
            one version (both deterministic); n is asynchronous with that bound.
        kept: trajectories that the target buffers instead of dropping them. The least-used is sampled first, then the newest
            (SRL's priority queue). 0 for none.
        reuses: updates that may use one buffered trajectory.
        synchronous: whether the source waits until its item is used. Otherwise gradients beyond `max_lag` are dropped and
            counted.
    """

    source: str
    target: str
    carries: Carries
    transport: Transport
    capacity: int
    when_full: WhenFull = WhenFull.BLOCK
    max_lag: int = 0
    synchronous: bool = True
    kept: int = 0
    reuses: int = 1
