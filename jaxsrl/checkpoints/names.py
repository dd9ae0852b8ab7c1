"""Names of the parts of a run in a checkpoint."""

LEARNER, REPLAY, BEHIND, EPISODES, LOG = "learner", "replay", "behind", "episodes/", "environments/"
ROWS = "rows"  # environments on devices
