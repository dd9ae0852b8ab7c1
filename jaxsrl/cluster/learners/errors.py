"""Errors between learner processes."""

from jaxsrl.machine.lifecycle import RequeueError


class LostLearnerError(RequeueError):
    """Another learner process failed, died or did not come in time; the newest checkpoint resumes the run. Exit status 75."""
