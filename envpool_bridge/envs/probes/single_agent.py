"""Probe environments: tiny tasks with known optimal values, each isolating one capability of an algorithm.

Source of the idea: Andy Jones, "Debugging RL, without the agonizing pain" (2021). Values below are for discount g.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class Probe(gymnasium.Env):
    """Base class of probes: one float observation in [-1, 1], `num_actions` actions."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]
    num_actions = 1

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(self.num_actions)
        self._observation = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._observation = self._first()
        return self._observed(), {}

    def _first(self) -> float:
        return 0.0

    def _sign(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def _observed(self) -> np.ndarray:
        return np.array([self._observation], np.float32)


class ConstantReward(Probe):
    """One step with reward 1. V(0) = 1. Isolates value fitting."""

    def step(self, action: int) -> Step:
        return self._observed(), 1.0, True, False, {}


class PredictableReward(Probe):
    """One step; the reward equals the observation (-1 or 1). V(o) = o. Isolates the value's dependence on observations."""

    def _first(self) -> float:
        return self._sign()

    def step(self, action: int) -> Step:
        return self._observed(), self._observation, True, False, {}


class DiscountedReward(Probe):
    """Two steps (observation 0, then 1), reward 1 at the second. V(0) = g, V(1) = 1. Isolates discounting."""

    def step(self, action: int) -> Step:
        second = self._observation == 1.0
        self._observation = 1.0
        return self._observed(), float(second), second, False, {}


class ActionReward(Probe):
    """One step, reward 1 for action 1 and -1 for action 0. V*(0) = 1. Isolates the policy gradient."""

    num_actions = 2

    def step(self, action: int) -> Step:
        return self._observed(), 1.0 if action == 1 else -1.0, True, False, {}


class MatchObservation(Probe):
    """One step, reward 1 if the action matches the observation's sign, else -1. V*(o) = 1. Isolates credit by state."""

    num_actions = 2

    def _first(self) -> float:
        return self._sign()

    def step(self, action: int) -> Step:
        return self._observed(), 1.0 if (action == 1) == (self._observation > 0) else -1.0, True, False, {}


class EndsByTask(Probe):
    """Reward 1 in each step; the task ends the episode (terminated) after `num_steps` = 1. V(0) = 1."""

    terminated, truncated = True, False

    def step(self, action: int) -> Step:
        return self._observed(), 1.0, self.terminated, self.truncated, {}


class EndsByClock(EndsByTask):
    """Like EndsByTask, but the clock truncates the episode: the value continues. V(0) = 1 / (1 - g)."""

    terminated, truncated = False, True


class RememberCue(Probe):
    """A T-maze: a cue (-1 or 1), then 0 for `corridor` steps; at the last, reward 1 if the action names the cue, else -1.

    V* is g^k with k steps left to the last. A policy without memory sees only 0 there, so its expected return is always
    0: isolates memory. Source: Bakker 2002, "Reinforcement learning with long short-term memory".
    """

    num_actions = 2
    corridor = 3

    def _first(self) -> float:
        self._cue, self._steps = self._sign(), 0
        return self._cue

    def step(self, action: int) -> Step:
        self._observation = 0.0
        self._steps += 1
        if self._steps <= self.corridor:
            return self._observed(), 0.0, False, False, {}
        return self._observed(), 1.0 if (action == 1) == (self._cue > 0) else -1.0, True, False, {}


class TossedCoin(Probe):
    """Action 0 ends with reward 0.5; action 1 tosses a coin (-1 or 1), whose side the second action must name for 1, not -1.

    V*(0) = g, V*(-1) = V*(1) = 1: isolates chance. A model that expects the mean of both sides finds no good second action.
    """

    num_actions = 2

    def step(self, action: int) -> Step:
        if self._observation == 0.0 and action == 1:
            self._observation = self._sign()
            return self._observed(), 0.0, False, False, {}
        if self._observation == 0.0:
            return self._observed(), 0.5, True, False, {}
        return self._observed(), 1.0 if (action == 1) == (self._observation > 0) else -1.0, True, False, {}


PROBES: dict[str, type[Probe]] = {
    probe.__name__: probe
    for probe in (
        RememberCue,
        TossedCoin,
        ConstantReward,
        PredictableReward,
        DiscountedReward,
        ActionReward,
        MatchObservation,
        EndsByTask,
        EndsByClock,
    )
}
"""Probes by the id that EnvConfig(suite="probe") takes."""
