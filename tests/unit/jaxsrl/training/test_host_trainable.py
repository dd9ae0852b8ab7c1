"""Messages of a run whose stage cannot change, and environments that are not where they were."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.errors import UserError
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.training.host_trainable import HostTrainable
from tests.unit.jaxsrl.training.test_run_state import replaying


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


def test_rows_that_are_elsewhere_after_a_resume_are_cut():
    agent, state = replaying(num_rows=3, next_step=8)
    lines: list[str] = []
    setup: Any = SimpleNamespace(agent=agent, log=lines.append)
    trainable: Any = HostTrainable(setup, SimpleNamespace())
    log = EpisodeLog(3, 0, EnvConfig("CartPole-v1").source().spec())
    log.last_observation, log.restarted = np.zeros((3, 4)), np.array([False, False, True])
    reset = EpisodeReset((0,) * 3, (None,) * 3)
    trainable._progress, trainable._learner = SimpleNamespace(log=log, reset=reset), SimpleNamespace(state=state)
    trainable._collector = SimpleNamespace(first_observation=lambda _: np.eye(3, 4) * [0, 1, 1, 0])
    trainable.check_restored(lambda: False)
    valid = np.asarray(trainable.learner.state.extra.buffer.storage.valid)
    # Row 2 has begun an episode, which has a line of its own.
    assert np.argwhere(~valid)[:, 1].tolist() == [1, 2]
    assert lines[1].startswith("1 of 3 environments could not be restored (first: [1])")
