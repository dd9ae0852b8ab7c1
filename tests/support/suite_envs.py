"""Single environments of suites, as their sources make them, with stacked frames as Gymnasium's wrapper stacks them."""

import json
from functools import partial

from gymnasium.wrappers import FrameStackObservation

from envpool_bridge.envs.config import EnvConfig


def make_suite_env(suite, env_id, kwargs):
    source = EnvConfig(env_id, suite, kwargs=json.dumps(kwargs)).source()
    env = source.make_env()
    return FrameStackObservation(env, source.frame_stack) if source.frame_stack > 1 else env


make_atari = partial(make_suite_env, "atari")
make_minigrid = partial(make_suite_env, "minigrid")
make_vizdoom = partial(make_suite_env, "vizdoom")
