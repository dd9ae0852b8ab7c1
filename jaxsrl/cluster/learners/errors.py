"""What can happen between learner processes."""

from envpool_bridge.errors import BridgeError


class LostLearnerError(BridgeError):
    """Another learner process failed, died or did not come in time; the newest checkpoint resumes the run. Exit status 75."""
