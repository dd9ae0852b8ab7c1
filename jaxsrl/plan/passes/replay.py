"""Plans meet agents that learn from replay: where their experience is kept. Pure functions of data."""

import dataclasses

from agents.api import Agent, AnyAgent, Replay, ReplayAgent
from envpool_bridge.errors import UserError
from jaxsrl.plan.fragment import (
    Carries,
    Channel,
    Devices,
    Fragment,
    FragmentKind,
    InProcess,
    Processes,
    Transport,
    WhenFull,
)
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies import REPLAY, replay_channels


def plan_with_replay(plan: Plan, agent: AnyAgent, on_host: bool) -> Plan:
    """Returns the plan with a replay fragment between environments and learner if the agent learns from replay.

    A plan that places its own replay fragment keeps it; other plans get one in host memory, or on the learner's devices. Buffers
    of several policies are part of the learner's state, and the plan stays as it is.

    Raises:
        UserError: If the plan and the agent disagree on whether there is replay, or the plan has no place for it.
    """
    if isinstance(agent, Agent) and agent.bind_replay is not None:
        _validate_policies(plan, agent, on_host)
        return plan
    if not isinstance(agent, ReplayAgent):
        if plan.replay is not None:
            raise UserError(
                f"plan {plan.name}: fragment {plan.replay.name} keeps experience, but agent {agent.name} learns from each "
                f"trajectory once: use another --plan"
            )
        if plan.is_offline:
            raise UserError(
                f"plan {plan.name}: a dataset is for agents that learn from replay, and {agent.name} learns from what its own "
                f"policy collects: use another --plan, or another algorithm"
            )
        return plan
    if plan.is_offline:
        return plan
    if plan.parameter_server is not None:
        raise UserError(
            f"plan {plan.name}: agent {agent.name} learns from replay, which replicas of a parameter server do not have: use "
            f"another --plan (multiple_learners shares gradients without a server)"
        )
    if plan.replay is None:
        plan = _with_fragment(plan, on_host)
    if agent.data.config.priority_exponent > 0.0 and plan.channel(Carries.PRIORITIES) is None:
        plan = dataclasses.replace(plan, channels=(*plan.channels, _priorities(plan, agent.data)))
    _validate(plan, agent.data)
    return plan


def replays_on_host(plan: Plan) -> bool:
    """Returns whether the plan keeps experience in memory of a host: of this machine, or of a node."""
    if plan.is_offline:
        return True
    return plan.replay is not None and isinstance(plan.replay.placement, InProcess | Processes)


def _with_fragment(plan: Plan, on_host: bool) -> Plan:
    learner = plan.learner
    placement = InProcess() if on_host else learner.placement
    fragment = Fragment(REPLAY, FragmentKind.REPLAY, 1, placement)
    place = plan.fragments.index(learner)
    fragments = (*plan.fragments[:place], fragment, *plan.fragments[place:])
    return dataclasses.replace(
        plan, fragments=fragments, channels=replay_channels(plan.channels, learner.name, on_host)
    )


def _priorities(plan: Plan, replay: Replay) -> Channel:
    delay = replay.config.priority_delay
    transport = Transport.DEVICE_COPY if replays_on_host(plan) else Transport.IN_PROCESS
    return Channel(plan.learner.name, REPLAY, Carries.PRIORITIES, transport, delay + 1, max_lag=delay)


def _validate(plan: Plan, replay: Replay) -> None:
    fragment = plan.replay
    assert fragment is not None
    where = f"plan {plan.name}: fragment {fragment.name}"
    if fragment.replicas != 1:
        raise UserError(f"{where} needs 1 replica, which all learners draw from: got {fragment.replicas}")
    if not isinstance(fragment.placement, InProcess) and fragment.placement != plan.learner.placement:
        raise UserError(
            f"{where} needs the learner's own devices or the main process: expected {plan.learner.placement} or InProcess(), got "
            f"{fragment.placement}"
        )
    if isinstance(fragment.placement, InProcess) and isinstance(plan.environments.placement, Devices):
        raise UserError(
            f"{where} is on the host, but {plan.environments.name} are on devices: use --replay.memory device"
        )
    _validate_nothing_dropped(plan, where)
    channel = plan.channel(Carries.PRIORITIES)
    if channel is not None and channel.max_lag != replay.config.priority_delay:
        raise UserError(
            f"{where}: priorities may be {channel.max_lag} gradient steps late, but --agent.replay.priority-delay is "
            f"{replay.config.priority_delay}: give both the same number"
        )


def _validate_policies(plan: Plan, agent: AnyAgent, on_host: bool) -> None:
    where = f"plan {plan.name}: agent {agent.name} has policies that learn from replay"
    if on_host or plan.replay is not None:
        raise UserError(
            f"{where}, whose buffers are on the learner's devices: use --replay.memory device and another --plan"
        )
    if plan.parameter_server is not None:
        raise UserError(f"{where}, which replicas of a parameter server do not have: use another --plan")
    trajectories = plan.channel(Carries.TRAJECTORIES)
    if trajectories is not None and trajectories.reuses > 1:
        raise UserError(f"{where}, which take each trajectory once: use --learner.sample-reuse 1")
    _validate_nothing_dropped(plan, where)


def _validate_nothing_dropped(plan: Plan, where: str) -> None:
    trajectories = plan.channel(Carries.TRAJECTORIES)
    if trajectories is not None and trajectories.when_full is WhenFull.DROP_OLDEST:
        raise UserError(
            f"{where}: a buffer keeps the steps of a row one after another, so that no trajectory may be missing between two: use "
            f"--learner.when-full block"
        )
