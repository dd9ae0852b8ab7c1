"""Fragments and channels: parts of the dataflow that run in one place, and the edges between them. Plain frozen data.

Source of the terms: MSRL (Zhu et al., USENIX ATC 2023).
"""

import dataclasses
import enum


class FragmentKind(enum.Enum):
    """What a fragment does."""

    ENVIRONMENT = "environment"
    INFERENCE = "inference"
    LEARNER = "learner"


class Transport(enum.Enum):
    """How a channel carries its data."""

    IN_PROCESS = "in_process"
    SHARED_RING = "shared_ring"
    DEVICE_COPY = "device_copy"


class WhenFull(enum.Enum):
    """What a source does when its channel holds `capacity` items."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


@dataclasses.dataclass(frozen=True)
class InProcess:
    """Runs in the main process, on its processor cores."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """Runs in processes of its own.

    Attributes:
        count: how many.
    """

    count: int


@dataclasses.dataclass(frozen=True)
class Devices:
    """Runs on accelerators (or host devices) of the main process.

    Attributes:
        indices: into `jax.devices()`.
    """

    indices: tuple[int, ...]


Placement = InProcess | Processes | Devices


@dataclasses.dataclass(frozen=True)
class Fragment:
    """A part of the dataflow.

    Attributes:
        name: unique in its plan.
        kind: what it does.
        replicas: copies of it that share the rows evenly.
        placement: where they run.
    """

    name: str
    kind: FragmentKind
    replicas: int
    placement: Placement


@dataclasses.dataclass(frozen=True)
class Channel:
    """An edge, and its back-pressure rule.

    Attributes:
        source: name of the fragment that writes.
        target: name of the fragment that reads.
        carries: what flows, in the field's words.
        transport: how.
        capacity: items in flight before `when_full` applies.
        when_full: what the source does then.
    """

    source: str
    target: str
    carries: str
    transport: Transport
    capacity: int
    when_full: WhenFull = WhenFull.BLOCK
