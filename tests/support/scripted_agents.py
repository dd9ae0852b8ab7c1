"""A multi-agent environment with known numbers: agents of different kinds that die, leave and join."""

import numpy as np
from gymnasium import spaces


class Scripted:
    """Agent i observes (i, step, 1000 x episode) and i further numbers, gets reward 10 i + step, and has i + 2 actions.

    "a" is present from the first to the last step; "b" dies (terminated) at step 2; "c" joins with the observation of
    step 3. The episode is truncated at step 5.
    """

    possible_agents = ("a", "b", "c")

    def __init__(self, mask=False):
        self.possible_agents = list(Scripted.possible_agents)
        self.agents = []
        self.mask = mask
        self.episode, self.seeds, self.actions = -1, [], []
        self.closed = False

    def observation_space(self, agent):
        place = self.possible_agents.index(agent)
        box = spaces.Box(-np.inf, np.inf, (3 + place,), np.float32)
        return spaces.Dict({"action_mask": spaces.MultiBinary(place + 2), "observation": box}) if self.mask else box

    def action_space(self, agent):
        return spaces.Discrete(self.possible_agents.index(agent) + 2)

    def state(self):
        return np.array([self.step_number, self.episode], np.float32)

    def _observation(self, agent):
        place = self.possible_agents.index(agent)
        shown = np.array([place, self.step_number, 1000 * self.episode, *range(1, place + 1)], np.float32)
        if not self.mask:
            return shown
        legal = np.zeros(place + 2, np.int8)
        legal[self.step_number % (place + 2)] = 1
        return {"action_mask": legal, "observation": shown}

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.episode, self.step_number, self.agents = self.episode + 1, 0, ["a", "b"]
        return {name: self._observation(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents)
        self.actions.append(dict(actions))
        self.step_number += 1
        acted = list(self.agents)
        rewards = {name: 10.0 * self.possible_agents.index(name) + self.step_number for name in acted}
        terminated = {name: name == "b" and self.step_number == 2 for name in acted}
        truncated = dict.fromkeys(acted, self.step_number == 5)
        if self.step_number == 3:
            self.agents.append("c")
        seen = [*acted, "c"] if self.step_number == 3 else acted
        observations = {name: self._observation(name) for name in seen}
        self.agents = [n for n in self.agents if not (terminated.get(n) or truncated.get(n))]
        return observations, rewards, terminated, truncated, {name: {"n": self.step_number} for name in acted}

    def close(self):
        self.closed = True


class Alike(Scripted):
    """The same script for agents that all observe five numbers and have two actions."""

    def observation_space(self, agent):
        box = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        return spaces.Dict({"action_mask": spaces.MultiBinary(2), "observation": box}) if self.mask else box

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _observation(self, agent):
        place = self.possible_agents.index(agent)
        shown = np.array([place, self.step_number, 1000 * self.episode, 7, 8], np.float32)
        return {"action_mask": np.ones(2, np.int8), "observation": shown} if self.mask else shown
