"""What a learner needs of whatever collects its trajectories."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from agents.api import AnyAgent, Array, Params
from envpool_bridge.envs.protocol import EnvSource, EpisodeReset
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree
from envpool_bridge.supervisor.supervisor import SupervisionTotals
from jaxsrl.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class CollectorConfig:
    """What every kind of source is made from.

    Attributes:
        env_source: of the environments.
        spec: of the env source.
        plan: where things are, and how many.
        agent: whose `act` to call.
        seed: of the environments.
        first_sequence: where a resumed run goes on.
        act_key: the run's key of actions, which every row and step is folded into.
        agent_state: [B, ...] a leaf, what the policy of every row of the run remembers as this process begins; None for the
            agent's initial one.
        supervision: what is done about environments, and processes of them, that fail.
        journal: directory in which every step is written down, for an audit; "" for none.
    """

    env_source: EnvSource
    spec: EnvSpec
    plan: Plan
    agent: AnyAgent
    seed: int
    first_sequence: int
    act_key: Array
    agent_state: Tree = None
    supervision: SupervisorOptions = dataclasses.field(default_factory=SupervisorOptions)
    journal: str = ""


class Collector(Protocol):
    """Full slots, in order of sequence."""

    def publish(self, version: int, params: Params) -> None:
        """Parameters that may act from now on; they are never donated. The first come before `start`."""
        ...

    def start(self, reset: EpisodeReset) -> None:
        """Begins to collect."""
        ...

    def acquire(self, timeout_seconds: float) -> int | None:
        """The next full slot's sequence, or None; raises what environments raised."""
        ...

    def slots(self, sequence: int) -> Sequence[SlotViews]:
        """The leased slots, one a pool, in row order."""
        ...

    def release(self, sequence: int) -> None:
        """Gives the slots back: nothing may read them any more."""
        ...

    def drop(self, sequence: int) -> None:
        """Gives the slots back without an update of them, where the plan allows that."""
        ...

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        """[B, *stored_shape] a leaf, what the environments show right after `start`; None if the run stops before."""
        ...

    def totals(self) -> Mapping[str, float]:
        """Seconds and counts since the start, by metric name."""
        ...

    def waits(self) -> Sequence[str]:
        """Describes what each part of the source waits for now, one sentence each; from any thread, without a wait."""
        ...

    def close(self) -> None:
        """Stops and frees everything; idempotent."""
        ...


def supervision_metrics(totals: Sequence[SupervisionTotals]) -> dict[str, float]:
    """What has failed so far in several pools together: counts, by metric name."""
    names = [field.name for field in dataclasses.fields(SupervisionTotals)]
    return {f"environment/{name}": float(sum(getattr(total, name) for total in totals)) for name in names}


def describe_lanes(pool: EnvPool, missing: Callable[[int], str], actor: str) -> str:
    """Describes what `actor`, which acts for a pool's lanes, waits for.

    Args:
        pool: of the environments.
        missing: names the missing parameters for a slot sequence; "" if none are missing.
        actor: subject of the sentence.
    """
    ready = pool.ready_lanes()
    wanted = [text for sequence in sorted({pool.position(lane)[0] for lane in ready}) if (text := missing(sequence))]
    if wanted:
        return f"{actor} waits for {wanted[0]}"
    if ready:
        return f"{actor} has not returned actions for {len(ready)} of {pool.num_lanes} lanes"
    return f"{actor} waits for observations of the environments"


def split_reset(reset: EpisodeReset, shape: PoolShape, first_row: int = 0) -> list[EpisodeReset]:
    """One reset a part of the pool whose rows begin at `first_row` of the run, in row order."""
    parts = [shape.part_rows(part) for part in range(shape.num_parts)]
    places = [slice(first_row + rows.start, first_row + rows.stop) for rows in parts]
    return [EpisodeReset(reset.episodes[rows], reset.actions[rows]) for rows in places]
