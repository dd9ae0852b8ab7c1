"""Channels that several policies share."""

from envpool_bridge.layout import PoolShape
from jaxsrl.config import RunConfig
from jaxsrl.dataflow.fragment import Carries, Channel, Transport, WhenFull


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
        ),
        Channel(parameters_from, "inference", Carries.PARAMETERS, Transport.DEVICE_COPY, lag + 1, max_lag=lag),
    )
