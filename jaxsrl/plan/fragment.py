"""Fragments and channels: parts of the dataflow that run in one place, and the edges between them. Plain frozen data.

Source of the terms: MSRL (Zhu et al., USENIX ATC 2023).
"""

import dataclasses
import enum


class FragmentKind(enum.Enum):
    """What a fragment does."""

    ENVIRONMENT = "environment"
    INFERENCE = "inference"
    REPLAY = "replay"
    LEARNER = "learner"
    PARAMETER_SERVER = "parameter_server"


class Carries(enum.Enum):
    """What flows through a channel."""

    OBSERVATIONS = "observations"
    ACTIONS = "actions"
    TRAJECTORIES = "trajectories"
    SAMPLES = "samples"
    PRIORITIES = "priorities"
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"


class Transport(enum.Enum):
    """How a channel carries its data."""

    IN_PROCESS = "in_process"
    SHARED_RING = "shared_ring"
    SHARED_BLOCK = "shared_block"
    DEVICE_COPY = "device_copy"
    OBJECT_STORE = "object_store"
    CALLS = "calls"


class WhenFull(enum.Enum):
    """What a source does when its channel holds `capacity` items."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


@dataclasses.dataclass(frozen=True)
class InProcess:
    """Runs in the main process, on its processor cores."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """Each replica runs in processes of its own.

    Attributes:
        count: processes of one replica.
        cores: processor cores they keep to, in turn, over all replicas; () leaves that to the kernel.
    """

    count: int
    cores: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Devices:
    """Runs on devices of the main process.

    Attributes:
        indices: into the devices of `platform`. Replicas share them evenly, in order.
        platform: "cpu" for the host's own devices beside an accelerator; "" for jax's default platform.
    """

    indices: tuple[int, ...]
    platform: str = ""

    def of_replica(self, replica: int, replicas: int) -> tuple[int, ...]:
        """The indices that one of `replicas` uses: its share, or one of them where there are fewer than replicas."""
        share = len(self.indices) // replicas
        if share == 0:
            return (self.indices[replica % len(self.indices)],)
        return self.indices[replica * share : (replica + 1) * share]


Placement = InProcess | Processes | Devices

EACH_GROUP = "*"
"""As a fragment's `group`: a learner for each policy that learns, where there are devices enough; one for all if not."""


@dataclasses.dataclass(frozen=True)
class Fragment:
    """A part of the dataflow.

    Attributes:
        name: unique in its plan.
        kind: what it does.
        replicas: copies of it that share the rows evenly, in order.
        placement: where they run.
        group: of a learner: the one of the agent's policies that it learns, from the rows of that policy's agents alone; "" for
            all policies; EACH_GROUP in a plan that does not know the agent yet (`jaxsrl.plan.passes.policy_groups` divides it).
        nodes: names of the nodes of a cluster that the replicas are on, one a replica; () for the main process's own machine.
    """

    name: str
    kind: FragmentKind
    replicas: int
    placement: Placement
    group: str = ""
    nodes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Channel:
    """An edge: what it carries, how far behind its reader may be, and its back-pressure rule.

    Attributes:
        source: name of the fragment that writes.
        target: name of the fragment that reads.
        carries: what flows.
        transport: how.
        capacity: items in flight before `when_full` applies.
        when_full: what the source does then.
        max_lag: versions that the reader of parameters, or the parameters that gradients were computed with, may be behind:
            0 waits for the newest, 1 overlaps by one version (both deterministic), n is asynchronous with that bound.
        kept: trajectories that the target keeps beside the channel instead of dropping them: what was learned from least is next,
            the newest of it first (SRL's priority queue). 0 for none.
        reuses: times that each of those is learned from, at most.
        synchronous: whether the source waits until what it wrote was used; gradients that are not waited for and exceed
            `max_lag` are dropped, and counted.
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
