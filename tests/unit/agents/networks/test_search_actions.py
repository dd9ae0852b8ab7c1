"""Actions that a search of a learned model chooses from."""

import pytest

from agents.muzero import MuZeroConfig, make_muzero
from agents.networks.config import NetworkConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, MultiDiscreteSpec


def test_masks_of_sampled_actions_are_rejected():
    observation = {"seen": ArraySpec((4,), "float32"), "mask": ArraySpec((7,), "int8")}
    masked = EnvSpec("test", observation, MultiDiscreteSpec((2,), (3, 4), (0, 0)), action_mask=("mask",))
    with pytest.raises(
        UserError, match="test: sampled actions of MuZero have no mask: expected an environment in which"
    ):
        make_muzero(MuZeroConfig(), masked, NetworkConfig(hidden_sizes=(8,)))
