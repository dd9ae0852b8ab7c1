"""A distribution policy knows no agent; here its plan meets the one that it is to train."""

from agents.api import AnyAgent
from jaxsrl.plan.passes.policy_groups import plan_with_groups
from jaxsrl.plan.passes.replay import ReplayOn, plan_with_replay
from jaxsrl.plan.plan import Plan


def plan_for_agent(plan: Plan, agent: AnyAgent, replay_on: ReplayOn = "device") -> Plan:
    """Returns the plan with what this agent needs beside it: learners of its policies, and replay.

    Args:
        plan: from a distribution policy.
        agent: that it is to train.
        replay_on: where replay is kept, unless the plan says that itself.

    Raises:
        UserError: the plan has no place for it.
    """
    return plan_with_replay(plan_with_groups(plan, agent), agent, replay_on)
