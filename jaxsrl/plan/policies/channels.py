"""Channels shared by several plans."""

import dataclasses

from envpool_bridge.shm.layout import PoolShape
from jaxsrl.config.run_config import RunConfig
from jaxsrl.plan.fragment import Carries, Channel, Transport, WhenFull

REPLAY = "replay"
"""Name of the replay fragment."""


def in_process_channels(max_lag: int) -> tuple[Channel, ...]:
    """Returns the channels of fragments that run in turn in one process."""
    return (
        Channel("environments", "inference", Carries.OBSERVATIONS, Transport.IN_PROCESS, 1),
        Channel("inference", "environments", Carries.ACTIONS, Transport.IN_PROCESS, 1),
        Channel("environments", "learner", Carries.TRAJECTORIES, Transport.IN_PROCESS, 1),
        Channel("learner", "inference", Carries.PARAMETERS, Transport.IN_PROCESS, max_lag + 1, max_lag=max_lag),
    )


def served_channels(run: RunConfig, shape: PoolShape, parameters_from: str = "learner") -> tuple[Channel, ...]:
    """Returns the channels of environment workers whose slots an inference server and a learner read."""
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
            WhenFull(run.learner.when_full),
            kept=run.learner.trajectory_buffer_size,
            reuses=run.learner.sample_reuse,
        ),
        Channel(parameters_from, "inference", Carries.PARAMETERS, Transport.DEVICE_COPY, lag + 1, max_lag=lag),
    )


def replay_channels(channels: tuple[Channel, ...], learner: str, on_host: bool) -> tuple[Channel, ...]:
    """Returns the channels of a plan with replay between its environments and its learner.

    Args:
        channels: of the plan without it.
        learner: name of the fragment that learns.
        on_host: whether host memory stores the experience, from which samples are copied to the learner's devices.
    """
    rerouted = tuple(
        dataclasses.replace(channel, target=REPLAY)
        if channel.carries is Carries.TRAJECTORIES and channel.target == learner
        else channel
        for channel in channels
    )
    transport = Transport.DEVICE_COPY if on_host else Transport.IN_PROCESS
    return (*rerouted, Channel(REPLAY, learner, Carries.SAMPLES, transport, 1))
