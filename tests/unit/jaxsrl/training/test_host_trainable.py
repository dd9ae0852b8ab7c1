"""Messages of a run whose stage cannot change."""

from types import SimpleNamespace
from typing import Any

import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.training.host_trainable import HostTrainable


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (EnvConfig(), "start the run with --env.stage or --env.stages, got stage 1"),
        (
            EnvConfig(stages=('{"max_episode_steps": 3}', "{}"), levels=2),
            "level replay chooses the stage of every episode: use --env.levels 0 to set stages, got stage 1",
        ),
    ],
)
def test_stages_that_cannot_be_set_are_rejected(env, message):
    spec = env.source().spec()
    setup: Any = SimpleNamespace(spec=spec)
    trainable = HostTrainable(setup, SimpleNamespace())
    trainable._progress = SimpleNamespace(log=EpisodeLog(1, 0, spec))
    with pytest.raises(UserError, match=message):
        trainable.set_stage(1)
