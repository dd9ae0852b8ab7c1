"""Agents with equal spaces: their rows are written and read together, not agent by agent."""

from collections.abc import Mapping, Sequence
from typing import Any

from envpool_bridge.envs.io.action_reader import ActionReader
from envpool_bridge.envs.io.observation_writer import ObservationWriter
from envpool_bridge.envs.io.output_rules import OutputRules
from envpool_bridge.envs.io.per_agent_rows import blank_observation
from envpool_bridge.envs.io.validation import ValueCheck
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree


def are_homogeneous(spec: EnvSpec) -> bool:
    """Returns whether every agent has the spec of a row, so that nothing is padded."""
    whole = (spec.observation, spec.action, spec.action_mask)
    return all((agent.observation, agent.action, agent.action_mask) == whole for agent in spec.agents)


class HomogeneousAgents:
    """All R rows of several environments with equal agents. Errors name only rows; `PerAgentRows` names the agent.

    Separate writing for each agent costs leaves times agents in each step; this class costs only leaves.

    Args:
        spec: spec of a row, with equal agents (`are_homogeneous`).
        row_ids: ids of all rows.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.
        clip_actions: whether continuous actions are clipped to the space's bounds.
    """

    def __init__(self, spec: EnvSpec, row_ids: Sequence[int], strict: bool, clip_actions: bool) -> None:
        self._names = [agent.name for agent in spec.agents]
        rules = OutputRules(spec.env_id, row_ids, strict)
        self._writer = ObservationWriter(spec, rules)
        self._values = ValueCheck(spec, rules)
        self._actions = ActionReader(spec.action, clip_actions)
        self._blank = blank_observation(spec.agents[0])

    def write(self, shown: Sequence[Mapping[str, Any]], out: Tree, step: int, thorough: bool) -> None:
        """Writes the observations of each environment, by agent name.

        Args:
            shown: [E]; without absent agents.
            out: [R, *stored_shape] a leaf.
            step: Step for messages.
            thorough: see `ObservationWriter.write`.

        Raises:
            BadEnvOutputError: If the form of an observation differs from the spec.
        """
        blank, names = self._blank, self._names
        self._writer.write([one.get(name, blank) for one in shown for name in names], out, step, thorough)

    def verify(self, observation: Tree, step: int) -> None:
        """Raises on bad values among [N, R, ...] observations, like `ValueCheck.verify`."""
        self._values.verify(observation, None, step)

    def read(self, action: Tree) -> list[dict[str, Any]]:
        """Returns the actions of each environment by agent name, from [R, ...] actions."""
        names, actions = self._names, self._actions.read(action)
        count = len(names)
        return [
            dict(zip(names, actions[begin : begin + count], strict=True)) for begin in range(0, len(actions), count)
        ]

    def are_finite(self, action: Tree) -> bool:
        """Returns whether every action is finite."""
        return self._actions.first_not_finite(action) is None
