"""Plan `single_learner_coarse`: actor processes that step environments with a copy of the policy; one learner.

MSRL's SingleLearnerCoarse; the shape of IMPALA, Acme and Sample Factory. Only whole trajectories cross processes.
"""

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Carries, Channel, Devices, Fragment, FragmentKind, Processes, Transport
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.pool_shape import pool_shape


def single_learner_coarse(run: RunConfig, resources: Resources) -> Plan:
    """Returns a plan with one actor for each environment worker, acting for its own environments on the CPU.

    Raises:
        UserError: the rows do not divide, or `workers_per_lane` is not 1.
    """
    del resources
    if run.pool.workers_per_lane != 1:
        raise UserError(
            f"plan single_learner_coarse: an actor acts for its own rows only: expected workers_per_lane 1, got "
            f"{run.pool.workers_per_lane}"
        )
    # One lane: an actor never waits for a reply, which a second lane would bridge.
    shape = pool_shape("single_learner_coarse", run, lanes_per_worker=1)
    actors, lag = Processes(shape.num_workers), run.max_policy_lag
    return Plan(
        name="single_learner_coarse",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, 1, actors),
            Fragment("inference", FragmentKind.INFERENCE, 1, actors),
            Fragment("learner", FragmentKind.LEARNER, 1, Devices(tuple(range(run.learner.num_devices)))),
        ),
        channels=(
            Channel("environments", "inference", Carries.OBSERVATIONS, Transport.IN_PROCESS, 1),
            Channel("inference", "environments", Carries.ACTIONS, Transport.IN_PROCESS, 1),
            Channel("environments", "learner", Carries.TRAJECTORIES, Transport.SHARED_RING, shape.num_slots),
            Channel("learner", "inference", Carries.PARAMETERS, Transport.SHARED_BLOCK, 2, max_lag=lag),
        ),
        shape=shape,
    )
