"""Channels that several policies share."""

import dataclasses

from envpool_bridge.shm.layout import PoolShape
from jaxsrl.config.run_config import RunConfig
from jaxsrl.plan.fragment import Carries, Channel, Transport, WhenFull

REPLAY = "replay"
"""Name of the fragment that keeps experience."""


def in_process_channels(max_lag: int) -> tuple[Channel, ...]:
    """Everything handed over inside one process, in turn."""
    return (
        Channel("environments", "inference", Carries.OBSERVATIONS, Transport.IN_PROCESS, 1),
        Channel("inference", "environments", Carries.ACTIONS, Transport.IN_PROCESS, 1),
        Channel("environments", "learner", Carries.TRAJECTORIES, Transport.IN_PROCESS, 1),
        Channel("learner", "inference", Carries.PARAMETERS, Transport.IN_PROCESS, max_lag + 1, max_lag=max_lag),
    )


def served_channels(run: RunConfig, shape: PoolShape, parameters_from: str = "learner") -> tuple[Channel, ...]:
    """Environment processes whose slots an inference server and a learner read."""
    lag = run.max_policy_lag
    return (
        Channel("environments", "inference", Carries.OBSERVATIONS, Transport.SHARED_RING, shape.num_lanes),
        Channel("inference", "environments", Carries.ACTIONS, Transport.SHARED_RING, shape.num_lanes),
        Channel(
            "environments",
            "learner",
            Carries.TRAJECTORIES,
            Transport.SHARED_RING,
            shape.num_slots,
            WhenFull(run.when_full),
            kept=run.kept_trajectories,
            reuses=run.trajectory_reuses,
        ),
        Channel(parameters_from, "inference", Carries.PARAMETERS, Transport.DEVICE_COPY, lag + 1, max_lag=lag),
    )


def replay_channels(channels: tuple[Channel, ...], learner: str, on_host: bool) -> tuple[Channel, ...]:
    """A plan's channels with replay between the environments and the learner.

    Args:
        channels: of the plan without it.
        learner: name of the fragment that learns.
        on_host: where experience is kept; samples are then copied to the learner's devices.
    """
    rerouted = tuple(
        dataclasses.replace(channel, target=REPLAY)
        if channel.carries is Carries.TRAJECTORIES and channel.target == learner
        else channel
        for channel in channels
    )
    transport = Transport.DEVICE_COPY if on_host else Transport.IN_PROCESS
    return (*rerouted, Channel(REPLAY, learner, Carries.SAMPLES, transport, 1))
