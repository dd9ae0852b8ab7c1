"""AEC environments as parallel ones."""

import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.suites.pettingzoo import as_parallel
from envpool_bridge.envs.suites.turn_based import TurnBased
from envpool_bridge.errors import UserError


def test_turn_based_players_leave_one_by_one():
    game = TurnBased(OneByOne())
    game.reset()
    assert game.agents == ["x", "y", "z"]
    seen, rewards, terminated, _, _ = game.step(dict.fromkeys("xyz", 1))
    assert (rewards, terminated) == ({"x": 1, "y": 0, "z": 0}, {"x": False, "y": True, "z": False})
    assert game.agents == ["x", "z"]
    assert [seen[name]["action_mask"].tolist() for name in "xyz"] == [[1, 0], [1, 0], [1, 1]]
    assert sorted(game.step({"x": 0, "z": 0})[0]) == ["x", "z"]
    with pytest.raises(UserError, match=r"x acts in Box.*: expected a Discrete"):
        TurnBased(OneByOne(spaces.Box(0, 1)))


def test_turn_based_players_may_leave_at_their_own_turn():
    class LeavesLater(OneByOne):
        def step(self, action):
            after = {"x": "z", "z": "y", "y": "z"}[self.agent_selection]
            super().step(action)
            self.agent_selection = after

    game = TurnBased(LeavesLater())
    game.reset()
    assert game.step(dict.fromkeys("xyz", 1))[2] == {"x": False, "y": True, "z": False}
    assert game.agents == ["x", "z"]
    assert game.step({"x": 0, "z": 0})[2] == {"x": False, "z": False}
    assert game.agents == ["x", "z"]


class OneByOne:
    """An AEC game of three in which x moves first, which ends y's part in it, and z moves next."""

    possible_agents = ("x", "y", "z")

    def __init__(self, action_space=None):
        self.acts = action_space or spaces.Discrete(2)

    def observation_space(self, agent):
        return spaces.Discrete(2)

    def action_space(self, agent):
        return self.acts

    def observe(self, agent):
        return 0

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection = ["x", "y", "z"], "x"
        self._cumulative_rewards, self.infos = dict.fromkeys("xyz", 0), {name: {} for name in "xyz"}
        self.terminations, self.truncations = dict.fromkeys("xyz", False), dict.fromkeys("xyz", False)

    def step(self, action):
        if action is None:
            assert self.agent_selection == "y"
            self.agents.remove("y")
            self.agent_selection = "z"
        elif self.agent_selection == "x":
            self._cumulative_rewards["x"], self.terminations["y"], self.agent_selection = 1, True, "y"


def rounds(is_parallelizable):
    aec_env = pytest.importorskip("pettingzoo").AECEnv

    class Rounds(aec_env):
        """Two rounds of moves by a and b, after which a gets 1 and b gets 2, in no other place than `last()` reads."""

        render_mode = None

        def __init__(self):
            self.metadata = {"name": "rounds", "is_parallelizable": is_parallelizable}
            self.possible_agents = ["a", "b"]

        def observation_space(self, agent):
            return spaces.Discrete(9)

        def action_space(self, agent):
            return spaces.Discrete(3)

        def observe(self, agent):
            return self.moves

        def reset(self, seed=None, options=None):
            self.agents, self.agent_selection, self.moves = ["a", "b"], "a", 0
            self.rewards, self._cumulative_rewards = {"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}
            self.terminations, self.truncations = {"a": False, "b": False}, {"a": False, "b": False}
            self.infos = {"a": {"action_mask": np.array([0, 1, 1])}, "b": {"action_mask": [False, True, False]}}

        def step(self, action):
            mover = self.agent_selection
            if self.terminations[mover]:
                return self._was_dead_step(action)
            self._cumulative_rewards[mover], self.moves = 0.0, self.moves + 1
            if mover == "b":
                self._cumulative_rewards = {
                    name: total + 1 + (name == "b") for name, total in self._cumulative_rewards.items()
                }
            self.terminations = dict.fromkeys("ab", self.moves == 4)
            self.agent_selection = "b" if mover == "a" else "a"

    return Rounds()


@pytest.mark.parametrize("is_parallelizable", [False, True])
def test_aec_rewards_are_those_of_last_and_masks_may_be_infos(is_parallelizable):
    env = as_parallel(rounds(is_parallelizable), "rounds")
    masks = [{name: seen["action_mask"].tolist() for name, seen in env.reset()[0].items()}]
    gained = []
    while env.agents:
        seen, rewards, *_ = env.step({"a": 1, "b": 1})
        gained.append((rewards["a"], rewards["b"]))
        masks.append({name: shown["action_mask"].tolist() for name, shown in seen.items()})
    a, b, waits = [0, 1, 1], [0, 1, 0], [1, 0, 0]
    if is_parallelizable:
        assert gained == [(1, 2), (1, 2)]
        assert masks == [{"a": a, "b": b}] * 3
    else:
        assert gained == [(0, 0), (1, 2), (0, 0), (1, 2)]
        assert masks == [{"a": a, "b": waits}, {"a": waits, "b": b}] * 2 + [{"a": waits, "b": waits}]
