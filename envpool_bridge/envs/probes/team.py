"""Probes for teams: tiny games of two agents with known optima and optimal values.

All agents get the same reward, so the option `team_reward` is not needed. Values below are for discount g. PettingZoo's
parallel API, without PettingZoo.
"""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.suites.multi_agent_options import TeamOptions, team_source
from envpool_bridge.envs.suites.options import options_of

ByAgent = dict[str, Any]


class TeamProbe:
    """Base class of team probes: two agents, present in the whole episode, with one common reward.

    Attributes:
        num_actions: Number of actions of each agent in turn.
        observation_size: numbers that an agent observes, each in [-1, 1].
        state_size: numbers of the global state, likewise.
    """

    possible_agents: list[str]
    num_actions: ClassVar[tuple[int, int]] = (2, 2)
    observation_size: ClassVar[int] = 2
    state_size: ClassVar[int] = 1

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["agent_0", "agent_1"], list[str]()
        self.state_space = spaces.Box(-1.0, 1.0, (self.state_size,), np.float32)
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Returns a box of numbers in [-1, 1]."""
        del agent
        return spaces.Box(-1.0, 1.0, (self.observation_size,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Returns a choice of the agent's `num_actions`."""
        return spaces.Discrete(self.num_actions[self.possible_agents.index(agent)])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Starts an episode; its randomness follows from the seed."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._draw_start()
        return self._observations(), {name: {} for name in self.agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps the game: a common reward, and the end if the game is over."""
        acted = list(self.agents)
        first, second = (self._value(actions[name]) for name in self.possible_agents)
        reward, over = self._play(first, second)
        observations = self._observations()
        if over:
            self.agents = []
        return (
            observations,
            dict.fromkeys(acted, reward),
            dict.fromkeys(acted, over),
            dict.fromkeys(acted, False),
            {name: {} for name in acted},
        )

    def close(self) -> None: ...

    def state(self) -> np.ndarray:
        """Returns the information that determines the value, [state_size] float32."""
        return np.ones(1, np.float32)

    def _draw_start(self) -> None:
        """Draws the randomness of an episode."""

    def _value(self, action: Any) -> Any:
        """Returns an agent's action in the form of `_play`."""
        return int(action)

    def _play(self, first: int, second: int) -> tuple[float, bool]:
        """Returns (reward, whether the game is over) for the agents' actions."""
        raise NotImplementedError

    def _observed(self, place: int) -> np.ndarray:
        """Returns one agent's observation, [observation_size] float32: by default only the agent's index, one-hot."""
        return np.eye(2, dtype=np.float32)[place]

    def _observations(self) -> ByAgent:
        return {name: self._observed(place) for place, name in enumerate(self.possible_agents)}


class TeamMatrix(TeamProbe):
    """One step of a matrix game; an agent observes its index. V* = 1, for actions (0, 1).

    Rewards, by agent_0's action (rows) and agent_1's (columns)::

        -0.5   1     0
         0.5  -0.5   0
         0     0     0

    The optimum needs different actions of the two agents, so a shared policy must distinguish them. (1, 0) is a second
    equilibrium, of reward 0.5, which neither agent improves alone, and action 2 is safe. Policy gradients reach the
    optimum from the uniform policy. Against a uniform partner agent_0's actions are worth (1/6, 0, 0) and agent_1's (0,
    1/6, 0). After the partner leans to its part of the optimum, the agent's own part only gains.
    """

    num_actions = (3, 3)
    rewards: ClassVar[tuple[tuple[float, ...], ...]] = ((-0.5, 1.0, 0.0), (0.5, -0.5, 0.0), (0.0, 0.0, 0.0))

    def _play(self, first: int, second: int) -> tuple[float, bool]:
        return self.rewards[first][second], True


class UnequalTeamMatrix(TeamMatrix):
    """A matrix game in which agent_0 has two actions and agent_1 three. V* = 1, for actions (1, 2).

    Rewards, rows agent_0's::

        0.5  -0.5   0
        0    -0.5   1

    Against a uniform partner agent_0's actions are worth (0, 1/6) and agent_1's (1/4, -1/2, 1/2); (0, 0) is a second
    equilibrium.
    """

    num_actions = (2, 3)
    rewards = ((0.5, -0.5, 0.0), (0.0, -0.5, 1.0))


class SecretSigns(TeamProbe):
    """One step. Each agent observes only its own sign, -1 or 1 with probability 1/2; the state is both signs.

    The reward is the product of the signs, plus 1 if both agents' actions match their own sign (1 for +1, 0 for -1).
    V*(s) = 1 + s_0 s_1: 2 where the signs are equal, 0 where they differ. An agent's observation carries no information
    on the product. Under the optimal policy the value of every observation is 1. For any function V of an agent's own
    observation, E[(V(o_i) - V*(s))^2] = Var(s_0 s_1) + (V(o_i) - 1)^2 >= 1, while a value function of the state may be
    exact. The product does not depend on actions: it is noise to a policy gradient that only a centralized baseline
    removes.
    """

    observation_size = 1
    state_size = 2

    def __init__(self) -> None:
        super().__init__()
        self._signs = np.ones(2, np.float32)

    def state(self) -> np.ndarray:
        """Returns the signs, [2] float32."""
        return self._signs.copy()

    def _draw_start(self) -> None:
        self._signs = self._random.choice(np.array([-1.0, 1.0], np.float32), 2)

    def _play(self, first: int, second: int) -> tuple[float, bool]:
        matched = np.array_equal(self._signs > 0, np.array([first, second]) == 1)
        return float(self._signs.prod()) + float(matched), True

    def _observed(self, place: int) -> np.ndarray:
        return self._signs[place : place + 1].copy()


class TwoStepTeam(TeamProbe):
    """Two steps. In the first, agent_0's action chooses the room of the second, without reward; agent_1's has no effect.

    In room A every pair of actions gives 0.25. In room B, by agent_0's action (rows) and agent_1's::

        0     0.25
        0.25  1

    V*(start) = g, V*(A) = 0.25, V*(B) = 1: agent_0 chooses room B (action 1), and both then act 1. While both are
    uniform, room B is worth 0.375, so that policy gradients ascend to the optimum. Agents observe the place (start, A,
    B; one-hot) and their index; the state is the place. agent_1's counterfactual advantage at the start is 0.

    The form is that of the two-step game of Rashid et al. 2018 (arXiv:1803.11485), section 5, with rewards for gradient
    ascent.
    """

    observation_size = 5
    state_size = 3
    rewards: ClassVar[tuple[tuple[float, ...], ...]] = ((0.0, 0.25), (0.25, 1.0))
    safe: ClassVar[float] = 0.25

    def __init__(self) -> None:
        super().__init__()
        self._place = 0

    def state(self) -> np.ndarray:
        """Returns the place, [3] float32."""
        return np.eye(3, dtype=np.float32)[self._place]

    def _draw_start(self) -> None:
        self._place = 0

    def _play(self, first: int, second: int) -> tuple[float, bool]:
        if self._place == 0:
            self._place = 1 + first
            return 0.0, False
        return (self.safe if self._place == 1 else self.rewards[first][second]), True

    def _observed(self, place: int) -> np.ndarray:
        return np.concatenate([self.state(), super()._observed(place)])


class TwoStepUnequal(TwoStepTeam):
    """The two-step game of Rashid et al. 2018 (arXiv:1803.11485), section 5: rooms as in TwoStepTeam, with other rewards.

    In room A every pair of actions gives 7. In room B, by agent_0's action (rows) and agent_1's::

        0   1
        1   8

    V*(start) = 8 g, V*(A) = 7, V*(B) = 8. The rewards of B are monotone in the value of each agent, but are no sum of
    two values. If all pairs are tried equally often, the closest sum (least squares) is (-1.5, 2.5; 2.5, 6.5). A
    learner of sums then estimates room B at 6.5 and goes to A. Policy gradients also go to A from the uniform policy,
    against which B is worth 2.5.
    """

    rewards = ((0.0, 1.0), (1.0, 8.0))
    safe = 7.0


class JointTargets(TeamProbe):
    """Two steps of continuous actions, one number in [-1, 3] of each agent, with a target c_i of 0 or 2 with probability 1/2.

    With errors e_i = a_i - c_i the reward is 1 - (e_0^2 + e_0 e_1 + e_1^2) / 4: 1 if both are on target, and less for
    all other actions. V* = 1 + g at the first step and 1 at the second, which has new targets. If the other agent is
    off by e, an agent's best error is -e / 2, so that the best action of one depends on the other. An agent observes
    the sign of its own target (-1 for 0, 1 for 2) and the step (0 or 1); the state is both signs and the step.
    """

    observation_size = 2
    state_size = 3
    bounds: ClassVar[tuple[float, float]] = (-1.0, 3.0)  # not symmetric: actions must be scaled and shifted

    def __init__(self) -> None:
        super().__init__()
        self._signs, self._step = np.ones(2, np.float32), 0

    def action_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        return spaces.Box(*self.bounds, (1,), np.float32)

    def state(self) -> np.ndarray:
        """Returns the signs of the targets, and the step, [3] float32."""
        return np.array([*self._signs, min(self._step, 1)], np.float32)

    def _draw_start(self) -> None:
        self._step = 0
        self._draw_targets()

    def _draw_targets(self) -> None:
        self._signs = self._random.choice(np.array([-1.0, 1.0], np.float32), 2)

    def _value(self, action: Any) -> float:
        return float(action[0])

    def _play(self, first: float, second: float) -> tuple[float, bool]:
        one, other = first - (1.0 + float(self._signs[0])), second - (1.0 + float(self._signs[1]))
        self._step += 1
        if self._step == 1:
            self._draw_targets()
        return 1.0 - (one * one + one * other + other * other) / 4.0, self._step == 2

    def _observed(self, place: int) -> np.ndarray:
        return np.array([self._signs[place], min(self._step, 1)], np.float32)


TEAM_PROBES: dict[str, type[TeamProbe]] = {
    probe.__name__: probe
    for probe in (TeamMatrix, UnequalTeamMatrix, SecretSigns, TwoStepTeam, TwoStepUnequal, JointTargets)
}
"""Probes of several agents by the id that EnvConfig(suite="probe") takes."""


def team_probe_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> ParallelSource:
    """Returns the source of a probe's agents.

    Args:
        env_id: Environment id of TEAM_PROBES.
        kwargs: fields of TeamOptions.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.

    Raises:
        UserError: unknown or bad options.
    """
    options = options_of(TeamOptions, "probe", env_id, kwargs)
    return team_source(TEAM_PROBES[env_id], env_id, options, strict)
