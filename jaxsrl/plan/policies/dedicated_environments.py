"""dedicated_environments: environment hosts with processor cores of their own, apart from the agents that they serve.

MSRL's Environments: for environments so expensive that nothing else may disturb them. Several policies of agents learn on
devices of their own, where there are enough.
"""

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import EACH_GROUP, Devices, Fragment, FragmentKind, Processes
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import served_channels
from jaxsrl.plan.policies.pool_shape import pool_shape


def dedicated_environments(run: RunConfig, resources: Resources) -> Plan:
    """Every environment worker keeps to a core of its own, the last ones; the first core is left to acting and learning.

    The learner's devices are divided among the policies that learn (`jaxsrl.plan.passes.policy_groups`).

    Raises:
        UserError: the rows do not divide, or there are not enough cores.
    """
    workers = run.num_env_workers
    if workers >= resources.num_cores:
        raise UserError(
            f"plan dedicated_environments: fragment environments: {workers} workers want a core each and acting and "
            f"learning one more, but there are {resources.num_cores}: use --run.num-env-workers "
            f"{max(1, resources.num_cores - 1)} (single_learner_fine shares cores)"
        )
    shape = pool_shape("dedicated_environments", run)
    cores = tuple(range(resources.num_cores - workers, resources.num_cores))
    return Plan(
        policy="dedicated_environments",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, Processes(workers, cores)),
            Fragment("inference", FragmentKind.INFERENCE, 1, Devices((0,), run.inference_platform)),
            Fragment("learner", FragmentKind.LEARNER, 1, Devices(tuple(range(run.num_devices))), EACH_GROUP),
        ),
        channels=served_channels(run, shape),
        shape=shape,
        merge_lanes=run.inference_batching == "merged",
    )
