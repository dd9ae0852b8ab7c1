"""serial: everything in turn in the main process. The reference that every other plan is tested against."""

from envpool_bridge.layout import PoolShape
from jaxsrl.config import RunConfig
from jaxsrl.dataflow.fragment import Channel, Devices, Fragment, FragmentKind, InProcess, Transport
from jaxsrl.dataflow.plan import Plan
from jaxsrl.dataflow.resources import Resources


def serial(run: RunConfig, resources: Resources) -> Plan:
    """One lane of all rows, stepped, acted for and learned from in turn."""
    del resources  # the same everywhere
    learner = Devices(tuple(range(run.num_devices)))
    return Plan(
        policy="serial",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, InProcess()),
            Fragment("inference", FragmentKind.INFERENCE, 1, Devices((0,))),
            Fragment("learner", FragmentKind.LEARNER, 1, learner),
        ),
        channels=(
            Channel("environments", "inference", "observations", Transport.IN_PROCESS, 1),
            Channel("inference", "environments", "actions", Transport.IN_PROCESS, 1),
            Channel("environments", "learner", "trajectories", Transport.IN_PROCESS, 1),
            Channel("learner", "inference", "parameters", Transport.IN_PROCESS, run.max_policy_lag + 1),
        ),
        shape=PoolShape(1, 1, 1, run.num_envs, run.rollout_length, run.max_policy_lag + 1),
        max_policy_lag=run.max_policy_lag,
    )
