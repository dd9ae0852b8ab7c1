"""Legal actions from infos: moved into the observation as they are, or refused with what is wrong with them."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.io.action_mask import MaskFromInfo
from envpool_bridge.envs.protocol import GymnasiumReset, first_rows, step_rows
from envpool_bridge.errors import BadEnvOutputError, UserError, WorkerError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec


class Turns(gymnasium.Env):
    """Step t allows action `t % 3` alone; `told(t)` is what the infos say instead, where a test wants another mask."""

    def __init__(self, action=None, observation=None, told=None):
        self.action_space = action or spaces.Discrete(3)
        self.observation_space = observation or spaces.Box(-1.0, 99.0, (2,), np.float32)
        self.told = told or (lambda t: np.eye(3, dtype=np.int8)[t % 3])
        self.t = 0

    def seen(self):
        place = np.full(2, self.t, np.float32)
        return {"place": place} if isinstance(self.observation_space, spaces.Dict) else place

    def infos(self):
        told = self.told(self.t)
        return {"lives": 3} if told is None else {"lives": 3, "action_mask": told}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.seen(), self.infos()

    def step(self, action):
        self.t += 1
        return self.seen(), float(np.all(action == (self.t - 1) % 3)), False, False, self.infos()


def stepped(env):
    env.reset(seed=0)
    return env.step(env.action_space.sample())[0]


def test_the_mask_changes_with_the_step_and_leaves_the_infos():
    env = MaskFromInfo(Turns())
    observation, info = env.reset(seed=0)
    assert info == {"lives": 3}
    for t in range(5):
        assert observation["action_mask"].tolist() == [int(t % 3 == place) for place in range(3)]
        assert observation["observation"].tolist() == [t, t]
        assert env.observation_space.contains(observation)
        action = int(np.flatnonzero(observation["action_mask"])[0])
        observation, reward, _, _, info = env.step(action)
        assert reward == 1.0
        assert info == {"lives": 3}


def test_a_dict_keeps_its_items_and_has_one_more():
    env = MaskFromInfo(Turns(observation=spaces.Dict({"place": spaces.Box(-1.0, 99.0, (2,), np.float32)})))
    assert set(env.observation_space.spaces) == {"action_mask", "place"}
    observation = stepped(env)
    assert set(observation) == {"action_mask", "place"}
    assert observation["action_mask"].tolist() == [0, 1, 0]


def test_the_masks_of_several_choices_are_joined_in_their_order():
    action = spaces.MultiDiscrete([2, 3])
    env = MaskFromInfo(Turns(action, told=lambda t: (np.array([True, False]), np.array([0, t % 2, 1], np.int8))))
    observation = stepped(env)
    assert observation["action_mask"].tolist() == [1, 0, 0, 1, 1]
    assert observation["action_mask"].dtype == np.int8
    assert env.observation_space["action_mask"] == spaces.MultiBinary(5)
    # Gymnasium takes the same tuple to sample: the order of the choices is its own.
    action.seed(0)
    sampled = {tuple(action.sample(mask=(np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)))) for _ in range(50)}
    assert sampled == {(0, 1), (0, 2)}


def test_rows_have_the_mask_where_agents_look_for_it():
    spec = GymnasiumSource(lambda: MaskFromInfo(Turns())).spec()
    assert spec.action_mask == ("action_mask",)
    assert spec.observation["action_mask"] == ArraySpec((3,), "int8", 0, 1)


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (None, "expected info['action_mask'] after every reset and step, got infos ['lives']"),
        (np.array([1, 0], np.int8), "to be 3 zeros and ones (bools or integers), got an array of shape (2,)"),
        (
            np.array([1.0, 0.0, 1.0]),
            "to be 3 zeros and ones (bools or integers), got an array of shape (3,) and dtype float64",
        ),
        (np.array([1, 0, 2]), "dtype int64: [1 0 2]"),
        (np.array([1, 0, -1]), "dtype int64: [ 1 0 -1]"),
        ("100", "to be 3 zeros and ones"),
    ],
)
def test_invalid_mask_is_rejected_with_row_and_step(told, problem):
    good = np.ones(3, bool)
    source = GymnasiumSource(lambda: MaskFromInfo(Turns(told=lambda t: told if t == 2 else good)), "Turns")
    rows = source.make_rows([4, 5], None, False)
    (slot,) = allocate_slots(make_layout(source.spec(), PoolShape(1, 1, 1, 2, 4, 1), {}))
    rows.reset(GymnasiumReset((0, 1)), first_rows(slot))
    rows.step(np.zeros(2, np.int32), step_rows(slot, 0))
    with pytest.raises(WorkerError) as refused:
        rows.step(np.zeros(2, np.int32), step_rows(slot, 1))
    assert str(refused.value).startswith("Turns, row 4, step 2: ValueError: expected info['action_mask']")
    assert problem in str(refused.value)
    rows.close()


@pytest.mark.parametrize("told", [np.ones(5, bool), (np.ones(2, bool),), (np.ones(3, bool), np.ones(2, bool))])
def test_masks_of_several_choices_must_be_one_for_each(told):
    env = MaskFromInfo(Turns(spaces.MultiDiscrete([2, 3]), told=lambda t: told))
    with pytest.raises(ValueError, match=r"expected info\['action_mask'\]"):
        env.reset()


def test_mask_without_legal_actions_is_rejected_with_row():
    source = GymnasiumSource(lambda: MaskFromInfo(Turns(told=lambda t: np.zeros(3, np.int8))), "Turns")
    rows = source.make_rows([7], None, False)
    (slot,) = allocate_slots(make_layout(source.spec(), PoolShape(1, 1, 1, 1, 4, 1), {}))
    with pytest.raises(BadEnvOutputError, match="Turns, row 7, .* expected at least one legal value"):
        rows.reset(GymnasiumReset((0,)), first_rows(slot))
    rows.close()


def test_mask_from_info_rejects_other_action_spaces():
    with pytest.raises(UserError, match=r"Turns: mask_from_info needs Discrete actions.*got Box"):
        MaskFromInfo(Turns(spaces.Box(-1.0, 1.0, (1,))))
    with pytest.raises(UserError, match="Turns: observations have an item 'action_mask' of their own"):
        MaskFromInfo(Turns(observation=spaces.Dict({"action_mask": spaces.MultiBinary(3)})))
    with pytest.raises(UserError, match="mask_from_info is for suite 'gymnasium', got 'atari'"):
        EnvConfig("ALE/Pong-v5", "atari", mask_from_info=True).source()


def test_a_configuration_asks_for_it():
    plain, masked = EnvConfig("Taxi-v4").source(), EnvConfig("Taxi-v4", mask_from_info=True).source()
    assert plain.spec().action_mask == ()
    assert masked.spec().action_mask == ("action_mask",)
    assert masked.spec().env_id == "Taxi-v4"
    assert masked.spec().observation["observation"] == plain.spec().observation
