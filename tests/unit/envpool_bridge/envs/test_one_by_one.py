"""Sources whose environments are made one by one: what they take, in which order, and wrappers in between."""

import copy
import dataclasses
import pickle

import cloudpickle

from envpool_bridge.envs.action_repeat import ActionRepeat, ActionRepeatAgents
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.probes.team import TEAM_PROBES
from tests.support.staged_env import StagedEnv

LAST = ["stage", "levels", "stagger", "evaluation_env"]


def names(source):
    return [field.name for field in dataclasses.fields(source)]


def test_sources_keep_the_order_of_their_arguments():
    first = ["make_env", "env_id", "action_repeat", "strict", "clip_actions", "keep_64_bits", "frame_stack"]
    assert names(GymnasiumSource) == [*first, "info_fields", "overlap_rows", *LAST]
    first = ["make_env", "env_id", "team_reward", "global_state", "strict", "clip_actions", "info_fields"]
    assert names(ParallelSource) == [*first, "stage", "stagger", "action_repeat", "evaluation_env"]


def test_wrapped_sources_reach_workers_with_their_wrappers():
    source = GymnasiumSource(lambda: StagedEnv(3), "Steps", evaluation_env=lambda: StagedEnv(2)).wrapped(
        ActionRepeat, 2
    )
    received = pickle.loads(cloudpickle.dumps(source))
    for made in (received, received.for_evaluation()):
        assert isinstance(made.make_env(), ActionRepeat)
    assert received.spec() == source.spec()


def test_wrappers_of_agents_can_be_copied():
    env = ActionRepeatAgents(TEAM_PROBES["TeamMatrix"](), 2)
    copied = copy.deepcopy(env)
    assert copied.possible_agents == env.possible_agents
    assert sorted(copied.reset(seed=0)[0]) == sorted(env.reset(seed=0)[0])
