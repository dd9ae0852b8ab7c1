"""The names under which a checkpoint holds the parts of a run."""

LEARNER, REPLAY, BEHIND, EPISODES, LOG = "learner", "replay", "behind", "episodes/", "environments/"
