"""How busy each fragment of a plan was, and how long it waited, as shares of wall time. Pure functions of totals."""

from collections.abc import Mapping

from jaxsrl.plan.fragment import Carries, Channel, FragmentKind, Processes, Transport, WhenFull
from jaxsrl.plan.plan import Plan

_TOTALS_OF = {
    FragmentKind.ENVIRONMENT: "environment",
    FragmentKind.INFERENCE: "inference",
    FragmentKind.REPLAY: "replay",
    FragmentKind.LEARNER: "learner",
    FragmentKind.PARAMETER_SERVER: "server",
}
"""What the totals of a kind of fragment are called: `<word>/busy_seconds`, `<word>/wait_seconds`."""

SAMPLE_WAIT_SECONDS = "learner/sample_wait_seconds"
"""Total of a learner that holds a trajectory, but waits for replay on the host to gather a sample."""


def utilization(plan: Plan, gained: Mapping[str, float], seconds: float) -> dict[str, float]:
    """`busy_share/NAME` and `wait_share/NAME` of each fragment, where the totals tell; `wait_on/READER/WRITER` likewise.

    Args:
        plan: whose fragments to name.
        gained: by how much each total grew: means over replicas, in seconds.
        seconds: of wall time in which they did.

    Returns:
        Shares from 0 to 1 by name. Fragments that cannot be measured have none (docs/reference/metrics.md).
    """
    known = _with_what_follows(plan, gained, seconds)
    shares: dict[str, float] = {}
    for fragment in plan.fragments:
        word = _TOTALS_OF[fragment.kind]
        for what in ("busy", "wait"):
            if f"{word}/{what}_seconds" in known:
                shares[f"{what}_share/{fragment.name}"] = _share(known[f"{word}/{what}_seconds"], seconds)
    if plan.replay is not None and SAMPLE_WAIT_SECONDS in gained:
        for learner in plan.learners:
            waited = _share(gained[SAMPLE_WAIT_SECONDS], seconds)
            shares[f"wait_on/{learner.name}/{plan.replay.name}"] = waited
    return shares


def _share(part: float, seconds: float) -> float:
    return min(1.0, max(0.0, part / seconds))  # clocks of several threads: never more than everything


def _with_what_follows(plan: Plan, gained: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The totals, and those that follow from them."""
    known = dict(gained)
    workers = [one.placement for one in plan.fragments if one.kind is FragmentKind.ENVIRONMENT]
    actors = [one.placement for one in plan.fragments if one.kind is FragmentKind.INFERENCE]
    if isinstance(workers[0], Processes) and "environment/wait_seconds" in gained:
        # A process either waits or works; one that also acts does so in the time it does not wait.
        acting = gained.get("inference/busy_seconds", 0.0) if actors == workers else 0.0
        known["environment/busy_seconds"] = max(0.0, seconds - gained["environment/wait_seconds"] - acting)
    if SAMPLE_WAIT_SECONDS in gained:
        waited = gained[SAMPLE_WAIT_SECONDS]
        known["learner/busy_seconds"] = max(0.0, gained.get("learner/busy_seconds", 0.0) - waited)
        known["learner/wait_seconds"] = gained.get("learner/wait_seconds", 0.0) + waited
    return known


def wait_reason(plan: Plan, name: str) -> str:
    """What a fragment waits for when it waits, in words: "actions, free slots"."""
    reads = [channel.carries.value for channel in plan.channels if channel.target == name]
    words = [word for word in dict.fromkeys(reads) if word != Carries.PRIORITIES.value]
    if any(channel.source == name and _may_block(channel) for channel in plan.channels):
        words.append("free slots")
    return ", ".join(words)


def _may_block(channel: Channel) -> bool:
    ring = channel.carries is Carries.TRAJECTORIES and channel.transport is Transport.SHARED_RING
    return ring and channel.when_full is WhenFull.BLOCK
