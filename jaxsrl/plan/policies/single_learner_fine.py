"""Plan `single_learner_fine`: environment processes, one batched inference server and one learner on the same devices.

MSRL's SingleLearnerFine; the shape of SEED RL, and of SRL with inline devices.
"""

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Devices, Fragment, FragmentKind, Processes
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import served_channels
from jaxsrl.plan.policies.pool_shape import pool_shape


def single_learner_fine(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with environments divided over workers and lanes, and one inference call for each lane and step.

    Raises:
        UserError: the rows do not divide.
    """
    del resources  # validate_plan checks them
    shape = pool_shape("single_learner_fine", run)
    return Plan(
        name="single_learner_fine",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, Processes(shape.num_workers)),
            Fragment("inference", FragmentKind.INFERENCE, 1, Devices((0,), run.inference.jax_platform)),
            Fragment("learner", FragmentKind.LEARNER, 1, Devices(tuple(range(run.learner.num_devices)))),
        ),
        channels=served_channels(run, shape),
        shape=shape,
        merge_lanes=run.inference.batching == "merged",
    )
