"""Plan `device_only`: JAX environments, acting and learning in one jitted program, replicated over the devices.

MSRL's GPUOnly; the shape of Anakin, WarpDrive and PureJaxRL.
"""

from envpool_bridge.shm.layout import PoolShape
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Devices, Fragment, FragmentKind
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import in_process_channels


def device_only(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with environments sharded over `num_devices`. The newest policy acts, whatever the lag of the run."""
    del resources
    devices = Devices(tuple(range(run.learner.num_devices)))
    return Plan(
        name="device_only",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, devices),
            Fragment("inference", FragmentKind.INFERENCE, 1, devices),
            Fragment("learner", FragmentKind.LEARNER, 1, devices),
        ),
        channels=in_process_channels(max_lag=0),
        shape=PoolShape(1, 1, 1, run.num_envs, run.rollout_length, 1),
    )
