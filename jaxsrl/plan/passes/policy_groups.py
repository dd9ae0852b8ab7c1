"""Plans meet agents of several policies: which policy learns on which devices. Pure functions of data."""

import dataclasses

from agents.api import Agent, AnyAgent
from envpool_bridge.errors import UserError
from jaxsrl.plan.fragment import EACH_GROUP, Channel, Devices, Fragment
from jaxsrl.plan.plan import Plan


def plan_with_groups(plan: Plan, agent: AnyAgent) -> Plan:
    """Returns the plan with a learner for each policy that learns, where it asks for that (`EACH_GROUP`); any other plan as it is.

    The learner's devices are divided among the policies in their order, evenly or nearly so. With one policy, or more policies
    than devices, one learner on all devices learns all of them. A frozen policy has no learner and no device.
    """
    asking = next((learner for learner in plan.learners if learner.group == EACH_GROUP), None)
    if asking is None:
        return plan
    names = _learning(agent)
    placement = asking.placement
    if len(names) < 2 or not isinstance(placement, Devices) or len(placement.indices) < len(names):
        return _replaced(plan, asking, [dataclasses.replace(asking, group="")])
    ends = [len(placement.indices) * number // len(names) for number in range(len(names) + 1)]
    learners = [
        Fragment(
            name=f"{asking.name} {name}",
            kind=asking.kind,
            replicas=1,
            placement=dataclasses.replace(placement, indices=placement.indices[ends[number] : ends[number + 1]]),
            group=name,
        )
        for number, name in enumerate(names)
    ]
    return _replaced(plan, asking, learners)


def _replaced(plan: Plan, old: Fragment, new: list[Fragment]) -> Plan:
    """Returns the plan with some fragments in place of one, each with all of that one's channels."""
    fragments: list[Fragment] = []
    for fragment in plan.fragments:
        fragments += new if fragment is old else [fragment]
    channels: list[Channel] = []
    for channel in plan.channels:
        if channel.target == old.name:
            channels += [dataclasses.replace(channel, target=fragment.name) for fragment in new]
        elif channel.source == old.name:
            channels += [dataclasses.replace(channel, source=fragment.name) for fragment in new]
        else:
            channels.append(channel)
    return dataclasses.replace(plan, fragments=tuple(fragments), channels=tuple(channels))


def learns_by_group(plan: Plan) -> bool:
    """Returns whether policies have learners of their own."""
    return any(learner.group not in ("", EACH_GROUP) for learner in plan.learners)


def _learning(agent: AnyAgent) -> list[str]:
    return [group.name for group in agent.groups] if isinstance(agent, Agent) else []


def check_groups(plan: Plan, agent: AnyAgent) -> None:
    """Rejects a plan whose learners are not those that the agent's policies need.

    Raises:
        UserError: names the fragment whose policy the agent does not have, or the policy that has no fragment.
    """
    if not learns_by_group(plan):
        return
    names = _learning(agent)
    for learner in plan.learners:
        if learner.group not in names:
            raise UserError(
                f"plan {plan.name}: fragment {learner.name} learns policy {learner.group!r}, which agent {agent.name} does "
                f"not have or does not train: expected one of {names}"
            )
    missing = sorted(set(names) - {learner.group for learner in plan.learners})
    if missing:
        raise UserError(
            f"plan {plan.name}: no fragment learns policies {missing}: add a learner for each, or use one without a group"
        )
