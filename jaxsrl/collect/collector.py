"""Protocol between a learner and the collector of its trajectories."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from agents.api import AnyAgent, Array, Params
from envpool_bridge.envs.protocol import EnvSource, EpisodeReset
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree
from envpool_bridge.supervisor.supervisor import SupervisionTotals
from jaxsrl.collect.slot_layout import agent_state_spec
from jaxsrl.plan.fragment import Processes
from jaxsrl.plan.plan import Plan

SUPERVISION_METRICS = {
    "restarts": "env/restarts_total",
    "hangs": "env/hangs_total",
    "episodes_cut": "env/truncated_by_failure_total",
    "rows_disabled": "env/disabled_rows",
    "recoveries": "env/recoveries_total",
    "recovery_seconds": "env/recovery_seconds_total",
    "replayed_steps": "env/replayed_steps_total",
    "outputs_repaired": "env/repaired_outputs_total",
}
"""Metric names of the fields of `SupervisionTotals`."""


@dataclasses.dataclass(frozen=True)
class CollectorConfig:
    """Arguments that every kind of collector takes.

    Attributes:
        env_source: source of the environments.
        spec: spec of the env source.
        plan: placement and sizes.
        agent: agent whose `act` is called.
        seed: seed of the environments.
        first_sequence: first slot sequence; not 0 for a resumed run.
        act_key: key of the run's actions, which is folded with every row and step.
        agent_state: [B, ...] a leaf, recurrent state of every row of the run at the start of this process; None for the agent's
            initial state.
        supervision: restart limits and timeouts of environment workers.
        journal: "MODULE:DIRECTORY" of a journal of all steps (`envpool_bridge.faults.journal`); "" for none.
        stages: stage of resets in each of the first slots, then in those after them; () for the spec's.
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
    stages: tuple[int, ...] = ()


class Collector(Protocol):
    """Source of full slots, in order of their sequence."""

    def publish(self, version: int, params: Params) -> None:
        """Publishes parameters for acting from now on; they are never donated. The first version comes before `start`."""
        ...

    def start(self, reset: EpisodeReset) -> None:
        """Starts to collect."""
        ...

    def acquire(self, timeout_seconds: float) -> int | None:
        """Returns the sequence of the next full slot, or None after the timeout; raises the errors of environments."""
        ...

    def slots(self, sequence: int) -> Sequence[SlotViews]:
        """Returns the leased slots, one per pool, in row order."""
        ...

    def release(self, sequence: int) -> None:
        """Releases the slots; nothing may read them afterwards."""
        ...

    def drop(self, sequence: int) -> None:
        """Releases the slots without an update, where the plan allows it."""
        ...

    def first_observation(self, should_stop: Callable[[], bool]) -> Tree | None:
        """Returns the observations right after `start`, [B, *stored_shape] a leaf; None if the run stops before."""
        ...

    def totals(self) -> Mapping[str, float]:
        """Returns seconds and counts since the start, by metric name."""
        ...

    def waits(self) -> Sequence[str]:
        """Describes in one sentence each what the parts of the collector wait for now. Callable from any thread; never blocks."""
        ...

    def close(self) -> None:
        """Stops everything and frees its resources; idempotent."""
        ...


class StagedCollector(Protocol):
    """Collector on this machine, whose environments can be sent another stage."""

    def set_stage(self, stage: int) -> None:
        """Sets the stage of resets in the first slots that no environment may fill yet (`StageQueue`). Call it between updates."""
        ...


def open_pool(config: CollectorConfig, replica: int) -> EnvPool:
    """Returns the pool of one replica of the plan's environments, which starts to launch its workers.

    Raises:
        UserError: If the environment cannot be sent to workers.
    """
    agent, shape = config.agent, config.plan.shape
    options = PoolOptions(
        run_seed=config.seed,
        first_sequence=config.first_sequence,
        first_row=replica * shape.num_rows,
        cores=_replica_cores(config.plan, replica),
        supervision=config.supervision,
        journal=config.journal,
        stages=config.stages,
    )
    state = agent_state_spec(agent)
    return EnvPool(config.env_source, shape, options, extras=agent.extras, agent_state=state, spec=config.spec)


def supervision_metrics(totals: Sequence[SupervisionTotals]) -> dict[str, float]:
    """Returns failure counts of several pools together, by metric name."""
    return {
        metric: float(sum(getattr(total, name) for total in totals)) for name, metric in SUPERVISION_METRICS.items()
    }


def describe_lanes(pool: EnvPool, missing: Callable[[int], str], actor: str) -> str:
    """Describes what `actor`, which acts for a pool's lanes, waits for.

    Args:
        pool: Pool of the environments.
        missing: names the missing parameters for a slot sequence; "" if none are missing.
        actor: subject of the sentence.
    """
    ready = pool.ready_lanes()
    missing_params = [
        text for sequence in sorted({pool.position(lane)[0] for lane in ready}) if (text := missing(sequence))
    ]
    if missing_params:
        return f"{actor} waits for {missing_params[0]}"
    if ready:
        return f"{actor} has not returned actions for {len(ready)} of {pool.num_lanes} lanes"
    return f"{actor} waits for observations of the environments"


def split_reset(reset: EpisodeReset, shape: PoolShape, first_row: int = 0) -> list[EpisodeReset]:
    """Splits a reset into one per part of the pool, in row order; the pool's rows start at row `first_row` of the run."""
    parts = [shape.part_rows(part) for part in range(shape.num_parts)]
    places = [slice(first_row + rows.start, first_row + rows.stop) for rows in parts]
    return [EpisodeReset(reset.episodes[rows], reset.actions[rows], stages=reset.stages[rows]) for rows in places]


def _replica_cores(plan: Plan, replica: int) -> tuple[int, ...]:
    placement = plan.environments.placement
    if not isinstance(placement, Processes) or not placement.cores:
        return ()
    start = replica * placement.count
    return tuple(placement.cores[(start + index) % len(placement.cores)] for index in range(placement.count))
