"""Refuses plans whose learners, one a policy of agents, do not fit together; every message names the fragment at fault."""

from envpool_bridge.errors import UserError
from jaxsrl.plan.fragment import EACH_GROUP, Carries, Channel, Devices, Fragment, FragmentKind
from jaxsrl.plan.plan import Plan


def validate_groups(plan: Plan) -> None:
    """Refuses learners that cannot learn side by side. Whether the agent has such policies is not known here.

    Raises:
        UserError: names the fragment, what it has and what it needs.
    """
    for fragment in plan.fragments:
        if fragment.group and fragment.kind is not FragmentKind.LEARNER:
            raise UserError(
                f"plan {plan.policy}: fragment {fragment.name} is {fragment.kind.value} for all policies, but names the group "
                f"{fragment.group!r}: only learners have one"
            )
    learners = plan.learners
    if not learners or (len(learners) == 1 and learners[0].group in ("", EACH_GROUP)):
        plan.fragment(FragmentKind.LEARNER)
        return
    for learner in learners:
        _validate_learner(plan, learner)
    _validate_apart(plan)
    _validate_published_together(plan)


def _validate_learner(plan: Plan, learner: Fragment) -> None:
    where = f"plan {plan.policy}: fragment {learner.name}"
    if learner.group in ("", EACH_GROUP):
        raise UserError(
            f"plan {plan.policy}: expected one fragment of kind learner, got {len(plan.learners)}, of which {learner.name} "
            f"names no policy: give each the group that it learns"
        )
    if not isinstance(learner.placement, Devices):
        raise UserError(f"{where} learns policy {learner.group!r}, which needs devices: got {learner.placement}")
    if learner.replicas != 1:
        raise UserError(
            f"{where} learns policy {learner.group!r} over all of its devices: expected 1 replica, got {learner.replicas}"
        )
    if plan.parameter_server is not None or plan.channel(Carries.GRADIENTS) is not None:
        raise UserError(
            f"{where} learns policy {learner.group!r} alone, but the plan has a parameter server, which learns all of them: "
            f"use one learner without a group"
        )
    if isinstance(plan.environments.placement, Devices):
        raise UserError(
            f"{where} learns policy {learner.group!r} alone, but {plan.environments.name} are in one program with the learner "
            f"of all policies: place them in processes, or use one learner without a group"
        )


def _validate_apart(plan: Plan) -> None:
    """No policy has two learners, no device two of them."""
    learnt_by: dict[str, str] = {}
    used_by: dict[tuple[str, int], str] = {}
    for learner in plan.learners:
        where = f"plan {plan.policy}: fragment {learner.name}"
        if learner.group in learnt_by:
            raise UserError(
                f"{where} learns policy {learner.group!r}, as {learnt_by[learner.group]} does: a policy has one learner"
            )
        learnt_by[learner.group] = learner.name
        if not isinstance(learner.placement, Devices):
            continue
        for index in learner.placement.indices:
            device = (learner.placement.platform, index)
            if device in used_by:
                raise UserError(
                    f"{where} wants device {index}, on which {used_by[device]} is: give every policy's learner devices of its "
                    f"own, or all policies one learner without a group"
                )
            used_by[device] = learner.name


def _validate_published_together(plan: Plan) -> None:
    """All policies read the same trajectories, and make one version of the parameters."""
    first = plan.learners[0]
    expected = _ends(plan, first)
    for learner in plan.learners:
        found = _ends(plan, learner)
        where = f"plan {plan.policy}: fragment {learner.name}"
        for channel, what in zip(
            found, ("channel of trajectories into it", "channel of parameters out of it"), strict=True
        ):
            if channel is None:
                raise UserError(f"{where} has no {what}: every policy's learner needs both")
        for mine, theirs in zip(found, expected, strict=True):
            if mine is None or theirs is None or _rules(mine) == _rules(theirs):
                continue
            raise UserError(
                f"{where}: its channel {mine.source} -> {mine.target} is not like that of {first.name}: policies learn from the "
                f"same trajectories and are published together; expected (capacity, when full, lag) {_rules(theirs)}, got "
                f"{_rules(mine)}"
            )


def _ends(plan: Plan, learner: Fragment) -> tuple[Channel | None, Channel | None]:
    """The channels that the learner's trajectories come from and its parameters go to."""
    into = (one for one in plan.channels if one.target == learner.name and one.carries is Carries.TRAJECTORIES)
    out = (one for one in plan.channels if one.source == learner.name and one.carries is Carries.PARAMETERS)
    return next(into, None), next(out, None)


def _rules(channel: Channel) -> tuple[int, str, int]:
    return channel.capacity, channel.when_full.value, channel.max_lag
