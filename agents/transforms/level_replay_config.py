"""Settings of prioritized level replay, in a module without jax: command lines read them before they need it."""

import dataclasses

from agents.ops import validate


@dataclasses.dataclass(frozen=True)
class LevelReplayConfig:
    """Settings of prioritized level replay.

    Attributes:
        temperature: beta. A level with rank r by its score has weight r^(-1 / beta). With inf, and staleness 0, levels are
            uniform.
        staleness: rho, share of the probability that is in proportion to the episodes since the level's newest one.
        replay_share: Probability of a level that has been played, while there are others; None for the share of levels that
            have been played.
    """

    temperature: float = 0.1
    staleness: float = 0.1
    replay_share: float | None = None

    def __post_init__(self) -> None:
        validate.positive(self, "temperature")
        validate.fraction(self, "staleness")
        if self.replay_share is not None:
            validate.fraction(self, "replay_share")
