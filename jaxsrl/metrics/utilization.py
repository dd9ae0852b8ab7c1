"""Busy and wait shares of each fragment of a plan, as fractions of wall time. Pure functions of totals."""

from collections.abc import Mapping

from jaxsrl.plan.fragment import Carries, Channel, FragmentKind, Processes, Transport, WhenFull
from jaxsrl.plan.plan import Plan

_PREFIXES = {FragmentKind.ENVIRONMENT: "env", FragmentKind.PARAMETER_SERVER: "server"}
"""Prefix of a fragment kind's totals, `<prefix>/busy_seconds` and `<prefix>/wait_seconds`, where it is not the kind itself."""

SAMPLE_WAIT_SECONDS = "learner/sample_wait_seconds"
"""Seconds in which a learner with a trajectory waits for host replay to gather a sample."""


def utilization(plan: Plan, gained: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Returns `utilization/NAME/busy` and `.../wait` of each fragment, and `utilization/READER/wait_on/WRITER`.

    Fractions whose totals are unknown are omitted.

    Args:
        plan: plan that names the fragments.
        gained: increase of each total, in seconds; means over replicas.
        seconds: wall time of the increase.

    Returns:
        Fractions from 0 to 1 by name. The metrics reference lists fragments without one.
    """
    known = _with_derived_totals(plan, gained, seconds)
    shares: dict[str, float] = {}
    for fragment in plan.fragments:
        prefix = _PREFIXES.get(fragment.kind, fragment.kind.value)
        for state in ("busy", "wait"):
            if f"{prefix}/{state}_seconds" in known:
                shares[f"utilization/{fragment.name}/{state}"] = _share(known[f"{prefix}/{state}_seconds"], seconds)
    sampled = plan.prepare or plan.replay or plan.dataset
    if sampled is not None and SAMPLE_WAIT_SECONDS in gained:
        for learner in plan.learners:
            waited = _share(gained[SAMPLE_WAIT_SECONDS], seconds)
            shares[f"utilization/{learner.name}/wait_on/{sampled.name}"] = waited
    return shares


def _share(part: float, seconds: float) -> float:
    return min(1.0, max(0.0, part / seconds))  # clocks of several threads may exceed wall time


def _with_derived_totals(plan: Plan, gained: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Returns the totals together with those that can be derived from them."""
    known = dict(gained)
    workers = [one.placement for one in plan.fragments if one.kind is FragmentKind.ENVIRONMENT]
    actors = [one.placement for one in plan.fragments if one.kind is FragmentKind.INFERENCE]
    if workers and isinstance(workers[0], Processes) and "env/wait_seconds" in gained:
        # A process either waits or works. An actor's inference is part of the time in which it does not wait.
        acting = gained.get("inference/busy_seconds", 0.0) if actors == workers else 0.0
        known["env/busy_seconds"] = max(0.0, seconds - gained["env/wait_seconds"] - acting)
    if SAMPLE_WAIT_SECONDS in gained:
        waited = gained[SAMPLE_WAIT_SECONDS]
        known["learner/busy_seconds"] = max(0.0, gained.get("learner/busy_seconds", 0.0) - waited)
        known["learner/wait_seconds"] = gained.get("learner/wait_seconds", 0.0) + waited
    return known


def wait_reason(plan: Plan, name: str) -> str:
    """Returns the resources that a fragment waits for, as text: "actions, free slots"."""
    reads = [channel.carries.value for channel in plan.channels if channel.target == name]
    resources = [item for item in dict.fromkeys(reads) if item != Carries.PRIORITIES.value]
    if any(channel.source == name and _may_block(channel) for channel in plan.channels):
        resources.append("free slots")
    return ", ".join(resources)


def _may_block(channel: Channel) -> bool:
    ring = channel.carries is Carries.TRAJECTORIES and channel.transport is Transport.SHARED_RING
    return ring and channel.when_full is WhenFull.BLOCK
