"""Plan `decoupled`: batched inference servers on devices of their own, the learner sharded over the others.

SRL's shape, and that of Sebulba and Cleanba.
"""

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Devices, Fragment, FragmentKind, Processes
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import served_channels
from jaxsrl.plan.policies.pool_shape import pool_shape


def decoupled(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan in which the first `num_devices` devices learn and the next `num_inference_devices` act.

    With inference platform "cpu", the CPU acts while an accelerator learns.

    Raises:
        UserError: the rows do not divide over the servers, or no device is left for inference.
    """
    servers = run.inference.num_servers
    shape = pool_shape("decoupled", run, replicas=servers)
    if run.inference.platform == "cpu":
        acting = Devices((0,), "cpu")
    else:
        acting = Devices(tuple(range(run.learner.num_devices, run.learner.num_devices + run.inference.num_devices)))
        if max(acting.indices) >= resources.num_devices:
            raise UserError(
                f"plan decoupled: fragment inference: {run.inference.num_devices} devices next to {run.learner.num_devices} of "
                f"the learner are requested, but there are {resources.num_devices}: use fewer --learner.num-devices, "
                f"--inference.platform cpu with an accelerator, or split a CPU-only host: --machine.num-cpu-devices 2"
            )
    return Plan(
        name="decoupled",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, servers, Processes(shape.num_workers)),
            Fragment("inference", FragmentKind.INFERENCE, servers, acting),
            Fragment("learner", FragmentKind.LEARNER, 1, Devices(tuple(range(run.learner.num_devices)))),
        ),
        channels=served_channels(run, shape),
        shape=shape,
        merge_lanes=run.inference.batching == "merged",
    )
