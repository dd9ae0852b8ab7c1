"""Plans whose samples are prepared on devices of their own, next to the learner (SRL's buffer workers). Pure functions of data."""

import dataclasses

from agents.api import AnyAgent, ReplayAgent
from envpool_bridge.errors import UserError
from jaxsrl.plan.fragment import Carries, Channel, Devices, Fragment, FragmentKind, Transport
from jaxsrl.plan.passes.replay import replays_on_host
from jaxsrl.plan.plan import Plan

PREPARE = "prepare"
"""Name of the fragment that prepares samples."""


def plan_with_prepare(plan: Plan, agent: AnyAgent, num_devices: int, lag: int) -> Plan:
    """Returns the plan with a fragment between replay and learner that applies the agent's `Replay.transforms`.

    Its devices are the first that no other fragment uses. A plan that places such a fragment itself keeps it.

    Args:
        plan: Plan with replay.
        agent: Agent to train.
        num_devices: devices of the fragment, one replica each; 0 for no fragment.
        lag: gradient steps by which its parameters may be behind.

    Raises:
        UserError: nothing is to be prepared, the experience is on the learner's devices, or devices or lag do not fit.
    """
    if plan.prepare is None:
        if not num_devices:
            if lag:
                raise UserError(
                    f"plan {plan.name}: --replay.prepare-lag {lag} needs devices that prepare: use --replay.prepare-devices 1"
                )
            return plan
        plan = _with_fragment(plan, num_devices, lag)
    _validate(plan, agent)
    return plan


def prepare_lag(plan: Plan) -> int:
    """Returns the gradient steps by which the parameters of the preparing fragment may be behind; 0 without one."""
    if plan.prepare is None:
        return 0
    end = (plan.prepare.name, Carries.PARAMETERS)
    return next((channel.max_lag for channel in plan.channels if (channel.target, channel.carries) == end), 0)


def _with_fragment(plan: Plan, num_devices: int, lag: int) -> Plan:
    if plan.replay is None:
        raise UserError(
            f"plan {plan.name}: --replay.prepare-devices needs samples of replay, and there are none: use 0, or an agent that "
            f"learns from replay with environments"
        )
    first = max((max(devices.indices) for devices in _default_devices(plan)), default=-1) + 1
    devices = Devices(tuple(range(first, first + num_devices)))
    fragment = Fragment(PREPARE, FragmentKind.PREPARE, num_devices, devices)
    learner, copy = plan.learner.name, Transport.DEVICE_COPY
    plan = plan.with_channels((Carries.SAMPLES,), target=PREPARE)
    added = (
        Channel(PREPARE, learner, Carries.SAMPLES, copy, lag + 1),
        Channel(learner, PREPARE, Carries.PARAMETERS, copy, lag + 1, max_lag=lag),
    )
    place = plan.fragments.index(plan.learner)
    fragments = (*plan.fragments[:place], fragment, *plan.fragments[place:])
    return dataclasses.replace(plan, fragments=fragments, channels=(*plan.channels, *added))


def _default_devices(plan: Plan) -> list[Devices]:
    placements = [fragment.placement for fragment in plan.fragments]
    return [one for one in placements if isinstance(one, Devices) and not one.platform and one.indices]


def _validate(plan: Plan, agent: AnyAgent) -> None:
    fragment = plan.prepare
    assert fragment is not None
    where = f"plan {plan.name}: fragment {fragment.name}"
    if not isinstance(agent, ReplayAgent) or not agent.data.transforms:
        raise UserError(
            f"{where} prepares samples, but agent {agent.name} has nothing to prepare: use --replay.prepare-devices 0 (MuZero "
            f"reanalyzes with --agent.reanalyze-fraction above 0)"
        )
    if not replays_on_host(plan):
        raise UserError(
            f"{where} needs samples that come from a host, but {plan.replay and plan.replay.name} is on devices of the learner: "
            f"use --replay.memory host"
        )
    placement, learning = fragment.placement, plan.learner.placement
    if not isinstance(placement, Devices) or len(placement.indices) != fragment.replicas:
        raise UserError(f"{where} needs a device for each replica: got {fragment.replicas} replicas on {placement}")
    if isinstance(learning, Devices) and placement.platform == learning.platform:
        shared = sorted(set(placement.indices) & set(learning.indices))
        if shared:
            raise UserError(f"{where} and {plan.learner.name} are both on device {shared[0]}: give each its own")
    lag, replay = prepare_lag(plan), agent.data.config
    if replay.priority_exponent > 0.0 and lag > replay.priority_delay:
        raise UserError(
            f"{where} prepares {lag} samples ahead, whose priorities may be {replay.priority_delay} gradient steps late: use "
            f"--agent.replay.priority-delay {lag}, or --replay.prepare-lag {replay.priority_delay}"
        )
