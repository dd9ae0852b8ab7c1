"""Player of the environments of an evaluation or a recording, in this process."""

from collections.abc import Sequence
from typing import ClassVar

import jax
import numpy as np

from agents.api import AnyAgent, Params
from envpool_bridge.envs.protocol import EnvRows, EpisodeReset, StepRows, first_rows, step_rows
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import SlotAccess, allocate_slots
from envpool_bridge.spec.specs import EnvSpec, num_frames
from envpool_bridge.spec.tree import take
from jaxsrl.collect.inference.act import ActOnRows, act_in_slot, row_keys
from jaxsrl.collect.slot_layout import agent_layout


class RowsPlayer:
    """Policy and environments stepped in turn, in a slot of this process's memory.

    Args:
        agent: agent that acts, for stacked frames.
        act: Jitted `act` of the agent.
        params: Parameters of the agent.
        spec: Specification of the environments.
        seed: Seed of actions.
        num_rows: number of rows.
        length: least number of steps of the slot, which is filled again and again.

    Attributes:
        slot: the slot.
        length: steps of the slot.
        newest: step of the slot that the last call of `step` filled.
        steps_of_process: calls of `step` of all players of this process, and moves of board games, for a watchdog.
    """

    steps_of_process: ClassVar[int] = 0

    def __init__(
        self,
        agent: AnyAgent,
        act: ActOnRows,
        params: Params,
        spec: EnvSpec,
        seed: int,
        num_rows: int,
        length: int = 16,
    ) -> None:
        # More steps than a stack of frames, so that the end of the slot can be copied to its start.
        self.length = max(length, num_frames(spec))
        layout = agent_layout(spec, PoolShape(1, 1, 1, num_rows, self.length, 1), agent)
        self._access, (self.slot,) = SlotAccess(layout), allocate_slots(layout)
        self._agent_state = agent.initial_agent_state(num_rows)
        self._act, self._params = act, params
        self._keys = row_keys(jax.random.key(evaluation_seed(seed)), range(num_rows))
        self._step = self._start_step = self.newest = 0

    def start(self, rows: EnvRows, episodes: Sequence[int] = ()) -> None:
        """Starts an episode in every row.

        Args:
            rows: the environments.
            episodes: number of each row's episode; () for the first ones.
        """
        first, none = first_rows(self.slot), (None,) * rows.num_rows
        rows.reset(EpisodeReset(tuple(episodes) or (0,) * rows.num_rows, none), first)
        first.begin_history()
        self._start_step = self._step

    def step(self, rows: EnvRows) -> StepRows:
        """Steps every row once; later calls overwrite the result."""
        self.newest = t = (self._step - self._start_step) % self.length
        if t == 0 and self._step > self._start_step:
            self._access.carry(self.slot, self.slot, slice(None))
        acting, out = self._access.act_rows(self.slot, t, slice(None)), step_rows(self.slot, t)
        steps = np.full(rows.num_rows, self._step, np.uint32)
        self._agent_state = act_in_slot(self._act, self._params, acting, self._agent_state, self._keys, steps, 0)
        out.prepare()
        rows.step(acting.action, out)
        rows.verify(take(out.observation, None), out.reward[None])
        self._step += 1
        RowsPlayer.steps_of_process += 1
        return out


def evaluation_seed(seed: int) -> int:
    """Returns the seed of environments and actions of an evaluation."""
    # Training uses the run's seed directly; evaluation must use other episodes.
    return int(np.random.SeedSequence((seed, 0xE7A1)).generate_state(1)[0])
