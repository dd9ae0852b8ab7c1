"""single_learner_fine: environment processes, one batched inference server and one learner on the same devices.

MSRL's SingleLearnerFine; the shape of SEED RL, and of SRL with inline devices.
"""

from envpool_bridge.errors import UserError
from envpool_bridge.layout import PoolShape
from jaxsrl.config import RunConfig
from jaxsrl.dataflow.fragment import Channel, Devices, Fragment, FragmentKind, Processes, Transport
from jaxsrl.dataflow.plan import Plan, nearest_multiple
from jaxsrl.dataflow.resources import Resources


def single_learner_fine(run: RunConfig, resources: Resources) -> Plan:
    """Rows divided evenly over workers and their lanes.

    Raises:
        UserError: the rows do not divide.
    """
    del resources  # checked by validate_plan
    shape = _pool_shape(run)
    learner = Devices(tuple(range(run.num_devices)))
    return Plan(
        policy="single_learner_fine",
        fragments=(
            Fragment("environments", FragmentKind.ENVIRONMENT, run.num_env_workers, Processes(run.num_env_workers)),
            Fragment("inference", FragmentKind.INFERENCE, 1, Devices((0,))),
            Fragment("learner", FragmentKind.LEARNER, 1, learner),
        ),
        channels=(
            Channel("environments", "inference", "observations", Transport.SHARED_RING, shape.num_lanes),
            Channel("inference", "environments", "actions", Transport.SHARED_RING, shape.num_lanes),
            Channel("environments", "learner", "trajectories", Transport.SHARED_RING, shape.num_slots),
            Channel("learner", "inference", "parameters", Transport.DEVICE_COPY, run.max_policy_lag + 1),
        ),
        shape=shape,
        max_policy_lag=run.max_policy_lag,
        merge_lanes=run.inference_batching == "merged",
    )


def _pool_shape(run: RunConfig) -> PoolShape:
    if run.num_env_workers % run.workers_per_lane:
        raise UserError(
            f"plan single_learner_fine: workers_per_lane must divide num_env_workers: got {run.workers_per_lane} and "
            f"{run.num_env_workers}; use --run.workers-per-lane 1"
        )
    parts = run.num_env_workers * run.lanes_per_worker
    if run.num_envs % parts:
        raise UserError(
            f"plan single_learner_fine: fragment environments: {run.num_envs} rows do not divide over "
            f"{run.num_env_workers} workers x {run.lanes_per_worker} lanes: "
            f"use --run.num-envs {nearest_multiple(run.num_envs, parts)}"
        )
    # One slot is being learned from while the next ones, as many as the lag allows, are being filled.
    return PoolShape(
        num_workers=run.num_env_workers,
        lanes_per_worker=run.lanes_per_worker,
        workers_per_lane=run.workers_per_lane,
        rows_per_part=run.num_envs // parts,
        rollout_length=run.rollout_length,
        num_slots=run.max_policy_lag + 2,
    )
