"""The environments of a checkpoint are those of a run if only options differ that are newer and have their defaults."""

from types import SimpleNamespace

import pytest

from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.serialization import to_json
from jaxsrl.training.run_checkpoints import RunCheckpoints


@pytest.mark.parametrize(("action_repeat", "are_same"), [(1, True), (4, False)])
def test_a_newer_option_must_have_its_default(action_repeat, are_same):
    own = to_json(EnvConfig(action_repeat=action_repeat))
    saved = {name: value for name, value in own.items() if name != "action_repeat"}
    checkpoints = object.__new__(RunCheckpoints)
    checkpoints._setup = SimpleNamespace(identity={"experiment": {"env": own, "run": {"seed": 3}}})
    assert checkpoints._has_same_environments({"experiment": {"env": saved, "run": {"seed": 3}}}) == (are_same, True)
