"""Plan `dedicated_environments`: workers on CPU cores of their own, apart from inference and learning.

MSRL's Environments, for expensive environments. Several policies of agents learn on devices of their own if there are enough
devices.
"""

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import EACH_GROUP, Devices, Fragment, FragmentKind, Processes
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import served_channels
from jaxsrl.plan.policies.pool_shape import pool_shape


def dedicated_environments(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan that pins each worker to one of the last cores and leaves the first to inference and learning.

    The learner's devices are divided among the policies that learn (`jaxsrl.plan.passes.policy_groups`).

    Raises:
        UserError: the rows do not divide, or there are not enough cores.
    """
    workers = run.pool.num_workers
    if workers >= resources.num_cores:
        raise UserError(
            f"plan dedicated_environments: fragment environments: {workers} workers need a core each, and inference and "
            f"learning one more, but there are {resources.num_cores}: use --pool.num-workers "
            f"{max(1, resources.num_cores - 1)} (single_learner_fine shares cores)"
        )
    shape = pool_shape("dedicated_environments", run)
    cores = tuple(range(resources.num_cores - workers, resources.num_cores))
    return Plan(
        name="dedicated_environments",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, Processes(workers, cores)),
            Fragment("inference", FragmentKind.INFERENCE, 1, Devices((0,), run.inference.jax_platform)),
            Fragment("learner", FragmentKind.LEARNER, 1, Devices(tuple(range(run.learner.num_devices))), EACH_GROUP),
        ),
        channels=served_channels(run, shape),
        shape=shape,
        merge_lanes=run.inference.batching == "merged",
    )
