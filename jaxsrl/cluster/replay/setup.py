"""Setup of a replay on another node, and the format of its messages."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agents.api import ReplayAgent, Sample, Trajectory
from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.shm.packed_arrays import ParamsLayout, params_layout, view_leaves
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.collect.acting_agent import acting_agent, read_jax_settings
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.slot_layout import agent_layout, trajectory_shapes
from jaxsrl.machine.provenance import read_code

PART_BYTES = 16 << 20
"""Of experience that is fetched or restored at a time."""

_ANSWER_BYTES, _MOST_SAMPLES = 256 << 10, 16  # of one answer: small samples come several at a time

_HEADER = ((), "int64")


@dataclasses.dataclass(frozen=True)
class ReplaySetup:
    """All that replay on another node is made from.

    Attributes:
        agent: Agent that learns, without what learns.
        layout: Layout of one environment host's slots.
        shapes: Shapes of a trajectory of all rows.
        num_hosts: environment hosts, in row order.
        key_impl: name of the implementation of the run's key of updates.
        jax_settings: jax settings of the learner's process, by name.
        code: Code of the learner's process; see `read_code`.
        journal: name of the journal of all inserted steps; "" for none.
    """

    agent: ReplayAgent
    layout: SlotLayout
    shapes: Trajectory
    num_hosts: int
    key_impl: str
    jax_settings: Mapping[str, Any]
    code: Mapping[str, str]
    journal: str = ""


def make_replay_setup(config: CollectorConfig, update_key: jax.Array) -> ReplaySetup:
    """Returns the setup of the replay of a run whose plan has environment hosts.

    Args:
        config: Configuration of the run's sources.
        update_key: the run's key of updates; only its kind matters.

    Raises:
        TypeError: If the agent does not learn from replay (a bug: plans without replay have none on a node).
    """
    agent, plan, spec = config.agent, config.plan, config.spec
    if not isinstance(agent, ReplayAgent):
        raise TypeError(f"agent {agent.name} does not learn from replay")
    return ReplaySetup(
        agent=acting_agent(agent),
        layout=agent_layout(spec, plan.shape, agent),
        shapes=trajectory_shapes(agent, spec, plan.num_rows, plan.shape.rollout_length),
        num_hosts=plan.environments.replicas,
        key_impl=str(jax.random.key_impl(update_key)),
        jax_settings=read_jax_settings(),
        code=read_code(),
        journal=config.journal,
    )


def sample_layout(agent: ReplayAgent, spec: EnvSpec) -> tuple[Any, ParamsLayout]:
    """Returns the structure of a sample's trajectory and the layout of a sample in a flat buffer, its number first."""
    replay = agent.data
    rows = replay.config.batch_size * replay.agents_per_window
    leaves, structure = jax.tree.flatten(trajectory_shapes(agent, spec, rows, replay.sequence_length))
    forms = [(tuple(leaf.shape), np.dtype(leaf.dtype).name) for leaf in leaves]
    return structure, params_layout([_HEADER, *forms, ((replay.config.batch_size,), "float32"), ((), "int32")])


class SampleBlocks:
    """Packs samples into flat buffers, and reads them as views of these. Any thread.

    Attributes:
        num_bytes: Number of bytes of a sample.
        most: samples in an answer, at most.
    """

    def __init__(self, setup: ReplaySetup) -> None:
        self._structure, self._flat = sample_layout(setup.agent, setup.layout.spec)
        self.num_bytes = self._flat.block_bytes
        self.most = max(1, min(_MOST_SAMPLES, _ANSWER_BYTES // self.num_bytes))

    def pack(self, first: int, samples: Sequence[Sample]) -> np.ndarray:
        """Returns samples of the run from number `first` on, [k * num_bytes] uint8; arrays as `HostBuffer.sample`."""
        answer = np.empty(len(samples) * self.num_bytes, np.uint8)
        for place, (sample, block) in enumerate(zip(samples, self._blocks_of(answer), strict=True)):
            header, *targets, probability, windows = view_leaves(self._flat, block)
            header[...] = first + place
            for target, leaf in zip(targets, jax.tree.leaves(sample.trajectory), strict=True):
                target[...] = leaf
            probability[...] = sample.probability
            windows[...] = sample.num_windows
        return answer

    def read(self, answer: np.ndarray) -> dict[int, Sample]:
        """Returns the samples by number, their arrays views of the answer."""
        return dict(self._read_one(block) for block in self._blocks_of(answer))

    def _blocks_of(self, answer: np.ndarray) -> list[np.ndarray]:
        return [answer[begin : begin + self.num_bytes] for begin in range(0, len(answer), self.num_bytes)]

    def _read_one(self, block: np.ndarray) -> tuple[int, Sample]:
        header, *leaves, probability, windows = view_leaves(self._flat, block)
        trajectory: Trajectory = jax.tree.unflatten(self._structure, leaves)
        return int(header), Sample(trajectory, probability, np.int32(windows))  # pyright: ignore[reportArgumentType]
