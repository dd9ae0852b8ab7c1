"""Plan `serial`: all fragments run in turn in the main process. Tests compare every other plan with it."""

from envpool_bridge.shm.layout import PoolShape
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Devices, Fragment, FragmentKind, InProcess
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import in_process_channels


def serial(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with one lane of all environments, which step, act and learn in turn."""
    del resources  # the plan is the same on every machine
    return Plan(
        name="serial",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, InProcess()),
            Fragment("inference", FragmentKind.INFERENCE, 1, Devices((0,), run.inference.jax_platform)),
            Fragment("learner", FragmentKind.LEARNER, 1, Devices(tuple(range(run.learner.num_devices)))),
        ),
        channels=in_process_channels(run.max_policy_lag),
        shape=PoolShape(1, 1, 1, run.num_envs, run.rollout_length, run.max_policy_lag + 1),
    )
