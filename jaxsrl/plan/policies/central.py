"""Plan `central`: replicas compute gradients, a parameter server applies them.

MSRL's Central; A3C when asynchronous. Replicas push each gradient and pull the updated parameters.
"""

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Carries, Channel, Devices, Fragment, FragmentKind, Processes, Transport
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import served_channels
from jaxsrl.plan.policies.pool_shape import pool_shape


def central(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with `num_replicas` replicas (one a device if 0) over `num_devices` devices, and a server on the first.

    Raises:
        UserError: rows or workers do not divide over the replicas.
    """
    del resources
    replicas = run.learner.num_replicas or run.learner.num_devices
    shape = pool_shape("central", run, replicas=replicas)
    devices = Devices(tuple(range(run.learner.num_devices)))
    synchronous = run.learner.gradients == "synchronous"
    staleness = 0 if synchronous else run.learner.max_gradient_staleness
    return Plan(
        name="central",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, replicas, Processes(shape.num_workers)),
            Fragment("inference", FragmentKind.INFERENCE, replicas, devices),
            Fragment("learner", FragmentKind.LEARNER, replicas, devices),
            Fragment("server", FragmentKind.PARAMETER_SERVER, 1, Devices((0,))),
        ),
        channels=(
            *served_channels(run, shape, parameters_from="server"),
            Channel(
                "learner",
                "server",
                Carries.GRADIENTS,
                Transport.DEVICE_COPY,
                replicas,
                max_lag=staleness,
                synchronous=synchronous,
            ),
            Channel("server", "learner", Carries.PARAMETERS, Transport.DEVICE_COPY, 1),
        ),
        shape=shape,
        merge_lanes=run.inference.batching == "merged",
    )
