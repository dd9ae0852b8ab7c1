"""Rainbow: DQN with six of its options at once. Source: Hessel et al. 2018 (arXiv:1710.02298)."""

from typing import Any

from agents.api import ReplayConfig
from agents.dqn import DQNConfig


def rainbow_config(**changes: Any) -> DQNConfig:
    """Returns the configuration of Rainbow for Atari (table 1).

    Args:
        **changes: Fields that differ. The sizes of `replay` are the paper's, with one gradient step every 4 env steps.
    """
    replay = ReplayConfig(
        capacity=1_000_000, batch_size=32, min_size=20_000, samples_per_insert=8.0, priority_exponent=0.5
    )
    rainbow: dict[str, Any] = {
        "replay": replay,
        "epsilon_start": 0.0,
        "epsilon_end": 0.0,
        "learning_rate": 6.25e-5,
        "n_step": 3,
        "target_update_period": 2_000,  # 8,000 env steps
        "double": True,
        "dueling": True,
        "noisy": True,
        "value_type": "c51",
        "reward_clip": 1.0,
    }
    return DQNConfig(**(rainbow | changes))
