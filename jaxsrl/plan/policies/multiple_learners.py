"""Plan `multiple_learners`: every device has its own environments, inference and learner; gradients are all-reduced.

MSRL's MultipleLearners; the shape of DD-PPO. The data of a replica never leaves its device.
"""

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Devices, Fragment, FragmentKind, Processes
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import served_channels
from jaxsrl.plan.policies.pool_shape import pool_shape


def multiple_learners(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with one replica of every fragment on each of `num_devices` devices.

    Raises:
        UserError: rows or workers do not divide over the replicas.
    """
    del resources
    replicas = run.learner.num_devices
    shape = pool_shape("multiple_learners", run, replicas=replicas)
    devices = Devices(tuple(range(replicas)))
    return Plan(
        name="multiple_learners",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, replicas, Processes(shape.num_workers)),
            Fragment("inference", FragmentKind.INFERENCE, replicas, devices),
            Fragment("learner", FragmentKind.LEARNER, replicas, devices),
        ),
        channels=served_channels(run, shape),
        shape=shape,
        merge_lanes=run.inference.batching == "merged",
    )
