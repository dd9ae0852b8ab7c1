"""Rows of one agent in several multi-agent environments, written and read in its own spec and stored with padding."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_bridge.envs.io.action_reader import ActionReader
from envpool_bridge.envs.io.observation_writer import ObservationWriter
from envpool_bridge.envs.io.output_rules import OutputRules
from envpool_bridge.envs.io.validation import ValueCheck
from envpool_bridge.spec.encoding import restored
from envpool_bridge.spec.padding import cut
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec, LeafSpec, zeros_of
from envpool_bridge.spec.tree import Tree, items, map_leaves, take, unflatten, write


class PerAgentRows:
    """The rows of one agent, every `rows_per_env`-th of R. Absent agents observe zeros (or the nearest legal values).

    Args:
        spec: spec of a row.
        place: index of the agent in `spec.agents`.
        row_ids: ids of all R rows.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.
        clip_actions: whether continuous actions are clipped to the space's bounds.

    Attributes:
        rules: treatment of bad output.
    """

    def __init__(self, spec: EnvSpec, place: int, row_ids: Sequence[int], strict: bool, clip_actions: bool) -> None:
        agent = spec.agents[place]
        self.name = agent.name
        self._agent = agent
        self._columns = slice(place, None, spec.rows_per_env)
        self._row_ids = list(row_ids)[self._columns]
        own = EnvSpec(
            f"{spec.env_id}, agent {agent.name}", agent.observation, agent.action, action_mask=agent.action_mask
        )
        self.rules = OutputRules(own.env_id, self._row_ids, strict)
        self._writer = ObservationWriter(own, self.rules)
        self._values = ValueCheck(own, self.rules)
        self._actions = ActionReader(agent.action, clip_actions)
        self._buffer = zeros_of(agent.observation, (len(self._row_ids),))
        self._blank = blank_observation(agent)

    def write(self, observations: Sequence[Any], out: Tree, step: int, thorough: bool) -> None:
        """Writes one observation for each environment, None for an absent agent.

        Args:
            observations: [E].
            out: [R, ...] a leaf, of the padded spec.
            step: Step for the message.
            thorough: see `ObservationWriter.write`.

        Raises:
            BadEnvOutputError: If the form of an observation differs from the agent's space.
        """
        shown = [self._blank if observation is None else observation for observation in observations]
        self._writer.write(shown, self._buffer, step, thorough)
        write(cut(self._agent.observation, take(out, self._columns), 1), self._buffer)

    def verify(self, observation: Tree, step: int) -> None:
        """Raises on bad values among [N, R, ...] observations, like `ValueCheck.verify`."""
        own = cut(self._agent.observation, take(observation, (slice(None), self._columns)), 2)
        self._values.verify(map_leaves(np.ascontiguousarray, own), None, step)

    def read(self, action: Tree) -> Sequence[Any]:
        """Returns one action of the agent's space for each environment, from [R, ...] actions of the padded spec."""
        return self._actions.read(self._own_actions(action))

    def replayed(self, actions: Tree) -> Sequence[Any]:
        """Returns one action for each step, from [N, ...] actions of one row."""
        return self._actions.read(self._clamped(cut(self._agent.action, actions, 1)))

    def first_not_finite(self, action: Tree) -> tuple[int, str] | None:
        """Returns (index of the environment, description) of the first non-finite action, or None."""
        return self._actions.first_not_finite(self._own_actions(action))

    def _own_actions(self, action: Tree) -> Tree:
        return self._clamped(cut(self._agent.action, take(action, self._columns), 1))

    def _clamped(self, own: Tree) -> Tree:
        return map_leaves(_within, self._agent.action, own)


def _within(leaf: Any, stored: np.ndarray) -> np.ndarray:
    """Clamps choices to the agent's own: rows of absent agents may hold any choice of the padded spec."""
    return (
        stored
        if isinstance(leaf, ArraySpec)
        else np.minimum(stored, np.asarray(leaf.num_values).reshape(leaf.shape) - 1)
    )


def blank_observation(agent: AgentSpec) -> Tree:
    """Returns the stored observation of an absent agent: zeros where they are legal; every action is legal."""
    blanks: list[np.ndarray] = []
    for path, leaf in items(agent.observation):
        zeros = np.zeros(leaf.stored_shape, leaf.dtype)
        if isinstance(leaf, ArraySpec):
            low, high = leaf.bound("low"), leaf.bound("high")
            if low is not None or high is not None:
                zeros = np.clip(zeros, low, high)
        blanks.append(np.ones_like(zeros) if agent.action_mask and path == agent.action_mask else zeros)
    blank = restored(agent.observation, unflatten(agent.observation, blanks))
    return map_leaves(_as_observed, agent.observation, blank)


def _as_observed(leaf: LeafSpec, value: Any) -> Any:
    return value[()] if isinstance(leaf, DiscreteSpec) else np.asarray(value)
