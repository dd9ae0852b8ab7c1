"""EnvConfig: an environment named by data is found, described and sent to workers, or refused with what to do."""

import json
import pickle
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import PROBES
from envpool_bridge.envs.probes.team import TEAM_PROBES
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError
from tests.support.suite_envs import make_atari

CONFIGS = {
    "gymnasium": EnvConfig("CartPole-v1"),
    "gymnasium_vector": EnvConfig("CartPole-v1", "gymnasium_vector"),
    "atari": EnvConfig("ALE/Pong-v5", "atari"),
    "probe": EnvConfig("MatchObservation", "probe"),
}
LIMIT = '{"max_episode_steps": 3}'


def refusal(config: EnvConfig) -> str:
    with pytest.raises(UserError) as refused:
        config.source()
    return str(refused.value)


@pytest.fixture
def without(monkeypatch):
    """Makes a package look as if it were not installed, to `find_spec` and to `import`."""
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("suite", "kind", "action_repeat"),
    [
        ("gymnasium", GymnasiumSource, 1),
        ("gymnasium_vector", VectorSource, 1),
        ("atari", GymnasiumSource, 4),
        ("probe", GymnasiumSource, 1),
    ],
)
def test_each_suite_gives_its_kind_of_source(suite, kind, action_repeat):
    source = CONFIGS[suite].source()
    assert type(source) is kind
    assert source.env_id == CONFIGS[suite].id
    assert source.action_repeat == action_repeat


@pytest.mark.parametrize("suite", CONFIGS)
@pytest.mark.parametrize("strict", [True, False])
def test_the_range_check_is_passed_on(suite, strict):
    config = EnvConfig(CONFIGS[suite].id, suite, strict=strict)
    assert config.source().strict is strict


@pytest.mark.parametrize("suite", CONFIGS)
def test_a_source_describes_the_same_rows_after_pickling(suite):
    source = CONFIGS[suite].source()
    spec = pickle.loads(pickle.dumps(source)).spec()
    assert spec == source.spec()
    assert spec.env_id == CONFIGS[suite].id
    assert spec.action_repeat == (4 if suite == "atari" else 1)


def test_an_atari_step_is_as_many_frames_as_declared():
    env = make_atari("ALE/Pong-v5", {})
    assert env.observation_space == spaces.Box(0, 255, (4, 84, 84), "uint8")
    env.reset(seed=0)
    before = env.unwrapped.ale.getFrameNumber()
    for _ in range(5):
        env.step(0)
    assert env.unwrapped.ale.getFrameNumber() - before == 5 * CONFIGS["atari"].source().action_repeat
    env.close()


def test_further_arguments_reach_the_environment():
    lake = EnvConfig("FrozenLake-v1", kwargs='{"map_name": "8x8"}')
    assert lake.source().spec().observation.num_values == 64
    limited, together = (EnvConfig("CartPole-v1", suite, LIMIT) for suite in ("gymnasium", "gymnasium_vector"))
    one, many = limited.source().make_env(), together.source().make_vector_env(2)
    one.reset(seed=0)
    many.reset(seed=0)
    assert [one.step(0)[3] for _ in range(3)] == [False, False, True]
    assert [many.step(np.zeros(2, int))[3].tolist() for _ in range(3)] == [[False] * 2, [False] * 2, [True] * 2]
    one.close()
    many.close()


@pytest.mark.parametrize("suite", ["gymnasium", "gymnasium_vector"])
def test_unknown_id_is_rejected_with_similar_names(suite):
    text = refusal(EnvConfig("CartPol-v1", suite))
    assert text.startswith("unknown environment id 'CartPol-v1': ")
    names = text.partition("; did you mean ")[2].removesuffix("?").split(" or ")
    assert names[0] == "CartPole-v1"
    assert all(name in gymnasium.registry for name in names)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("env_id", "suite"),
    [
        ("ALE/Pong-v5", "atari"),
        ("MiniGrid-DoorKey-5x5-v0", "minigrid"),
        ("VizdoomBasic-v0", "vizdoom"),
        ("CartPole-v1", "gymnasium"),
    ],
)
def test_suite_auto_is_chosen_by_the_id(env_id, suite):
    assert EnvConfig(env_id).with_suite() == EnvConfig(env_id, suite)
    assert EnvConfig(env_id, "probe").with_suite().suite == "probe"


def test_suite_auto_preprocesses_atari_games():
    assert EnvConfig("ALE/Pong-v5").source().spec() == EnvConfig("ALE/Pong-v5", "atari").source().spec()


def test_unknown_atari_game_is_rejected_with_similar_names():
    assert "did you mean ALE/Pong-v5" in refusal(EnvConfig("ALE/Pongg-v5", "atari"))
    assert "did you mean ALE/Pong-v5" in refusal(EnvConfig("ALE/Pongg-v5"))


def test_unknown_id_without_similar_names_has_no_guess():
    text = refusal(EnvConfig("Xqzzyqx-v9"))
    assert text.startswith("unknown environment id 'Xqzzyqx-v9': ")
    assert "did you mean" not in text


def test_unknown_probe_is_rejected_with_all_known_ones():
    text = refusal(EnvConfig("Nothing", "probe"))
    assert text == f"unknown probe environment 'Nothing': expected one of {', '.join([*PROBES, 'Sleep', *TEAM_PROBES])}"


@pytest.mark.parametrize(
    "kwargs", ["{", "[1]", "3", "a", "=1", "null", '"max_episode_steps"', 3, None, ["a"], {"a": {1}}]
)
@pytest.mark.parametrize("field", ["kwargs", "row_kwargs", "stages"])
def test_arguments_of_another_form_are_rejected(field, kwargs):
    if (field, kwargs) in [("row_kwargs", "[1]"), ("row_kwargs", ["a"])]:
        return  # a list, which `tasks` rejects
    if field == "stages" and isinstance(kwargs, str) and not kwargs.startswith(("{", "[", "=")):
        return  # an id
    with pytest.raises(UserError, match=r"^env\.\w+: expected .* JSON object.*, got ") as rejected:
        EnvConfig(**{field: [kwargs] if field == "stages" else kwargs})
    assert "\n" not in str(rejected.value)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"a": 1, "b": [2, "x"], "c": None, "d": "8x8", "e": "x y"},
        '{"a":1,"b":[2, "x"],  "c": null, "d": "8x8", "e": "x y"}',
        """a=1 'b=[2, "x"]' c=null d=8x8 e='x y'""",
    ],
)
def test_forms_of_arguments_are_one_configuration(kwargs):
    expected = {"a": 1, "b": [2, "x"], "c": None, "d": "8x8", "e": "x y"}
    config = EnvConfig(kwargs=kwargs, row_kwargs=kwargs, stages=(kwargs,))
    assert config.arguments() == json.loads(config.row_kwargs) == json.loads(config.stages[0]) == expected
    assert config == EnvConfig(kwargs=expected, row_kwargs=expected, stages=[expected])
    assert EnvConfig(row_kwargs=[{"a": 1}]) == EnvConfig(row_kwargs='[{"a":1}]')


@pytest.mark.parametrize(
    ("config", "module", "extra"),
    [
        (EnvConfig("ALE/Pong-v5", "atari"), "ale_py", "atari"),
        (EnvConfig("ALE/Pong-v5", "atari"), "cv2", "atari"),
        (EnvConfig("ALE/Pong-v5"), "ale_py", "atari"),
        (EnvConfig("HalfCheetah-v5"), "mujoco", "mujoco"),
        (EnvConfig("HalfCheetah-v5", "gymnasium_vector"), "imageio", "mujoco"),
    ],
)
def test_missing_package_is_named_with_its_install_command(without, config, module, extra):
    without(module)
    assert refusal(config) == (
        f"{module} is not installed, and these environments need it: pip install 'envpool-bridge[{extra}]'"
    )


def test_a_package_that_no_row_needs_is_not_asked_for(without):
    without("ale_py")
    assert EnvConfig("CartPole-v1").source()
    assert EnvConfig("MatchObservation", "probe").source()


def test_any_id_can_be_stacked_lazily_and_its_infos_recorded():
    config = EnvConfig("CartPole-v1", frame_stack=4, info_fields=["score"])
    spec = config.source().spec()
    assert (spec.observation.shape, spec.observation.stored_shape) == ((4, 4), (4,))
    assert spec.info_fields == ("score",)
    assert hash(config) == hash(EnvConfig("CartPole-v1", frame_stack=4, info_fields=("score",)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"frame_stack": 0}, "frame_stack must be at least 1: got 0"),
        ({"frame_stack": 2, "suite": "gymnasium_vector"}, "frame_stack is for suites 'gymnasium' and 'probe'"),
    ],
)
def test_settings_that_a_suite_lacks_are_rejected(settings, says):
    with pytest.raises(UserError, match=says):
        EnvConfig("CartPole-v1", **settings).source()


@pytest.mark.parametrize("suite", ["auto", "gymnasium", "gymnasium_vector"])
def test_an_id_without_a_version_is_that_of_the_newest(suite):
    with pytest.warns(UserWarning, match="CartPole has no version: CartPole-v1 is used"):
        config = EnvConfig("Acrobot-v1, CartPole-v0,CartPole", suite)
    assert config.id == "Acrobot-v1, CartPole-v0,CartPole-v1"  # what a run records
    with pytest.warns(UserWarning, match="CartPole-v1 is used"):
        assert EnvConfig(suite=suite, stages=('{"gravity": 9}', "CartPole")).stages[1] == "CartPole-v1"


def test_other_suites_have_ids_of_their_own():
    assert EnvConfig("CartPole", "envpool").id == "CartPole"


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "Pong-v4", "Pong-ram-v0", "PongDeterministic-v4", "Pong"])
def test_ids_of_ale_before_its_namespace_name_the_new_one(env_id, monkeypatch):
    registry = {name: registered for name, registered in gymnasium.registry.items() if not name.startswith("Pong")}
    monkeypatch.setattr(gymnasium, "registry", registry)
    monkeypatch.setattr("gymnasium.envs.registration.registry", registry)
    assert refusal(EnvConfig(env_id)).endswith("; did you mean ALE/Pong-v5?")
    assert "ALE" not in refusal(EnvConfig("Ping-v4"))


class Broken(gymnasium.Env):
    def __init__(self):
        raise AssertionError


class VectorRewards(gymnasium.Env):
    observation_space, action_space, reward_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2), spaces.Box(0, 1, (3,))


@pytest.mark.parametrize("suite", ["gymnasium", "gymnasium_vector"])
def test_exceptions_of_the_creation_are_one_line(suite, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Mine/Broken-v0", Registration("Mine/Broken-v0", Broken))
    with pytest.raises(
        UserError, match=r"^Mine/Broken-v0 cannot be made: AssertionError \(raised at .*test_config\.py:\d+\)$"
    ):
        EnvConfig("Mine/Broken-v0", suite).source().spec()
    with pytest.raises(UserError, match=r"^Hopper-v3 cannot be made: \w+: [^\n]*$"):
        EnvConfig("Hopper-v3").source().spec()


def test_vector_rewards_need_a_wrapper_that_combines_them(monkeypatch):
    registered = Registration("Mine/Vectors-v0", VectorRewards)
    monkeypatch.setitem(gymnasium.registry, registered.id, registered)
    with pytest.raises(UserError, match=r"^Mine/Vectors-v0: expected one number as reward, got Box.*LinearReward$"):
        EnvConfig("Mine/Vectors-v0").source().spec()
    registered.additional_wrappers = (gymnasium.wrappers.TransformReward.wrapper_spec(func=sum),)
    assert EnvConfig("Mine/Vectors-v0").source().spec().observation.shape == (2,)
