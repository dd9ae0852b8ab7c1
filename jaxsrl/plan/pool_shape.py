"""Shape of a pool of environment workers: how rows divide over workers and lanes."""

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.plan import nearest_multiple


def pool_shape(
    plan: str, run: RunConfig, replicas: int = 1, lanes_per_worker: int = 0, resources: Resources | None = None
) -> PoolShape:
    """Returns the shape of one replica: the rows and workers of `run`, divided evenly over `replicas`.

    Args:
        plan: Name of the plan, for messages.
        run: sizes.
        replicas: pools that share the rows and the workers.
        lanes_per_worker: 0 for the value of `run`.
        resources: Resources of the machine, whose accelerators act for many rows at once; None where the workers act.

    Raises:
        UserError: If a number does not divide. The message names one that does.
    """
    where = f"plan {plan}"
    if run.pool.num_workers % replicas:
        raise UserError(
            f"{where}: fragment environments: {run.pool.num_workers} workers do not divide over {replicas} replicas: "
            f"use --pool.num-workers {nearest_multiple(run.pool.num_workers, replicas)}"
        )
    workers, lanes = run.pool.num_workers // replicas, lanes_per_worker or run.pool.lanes_per_worker
    per_lane = run.pool.workers_per_lane
    if not per_lane:
        per_lane = _most_workers_per_lane(workers, lanes) if _should_share_lanes(run, replicas, resources) else 1
    if workers % per_lane:
        raise UserError(
            f"{where}: pool.workers_per_lane must divide pool.num_workers: got {per_lane} and {workers}; "
            f"use --pool.workers-per-lane 1"
        )
    parts = workers * lanes
    if run.num_envs % (parts * replicas):
        # Who asks for fewer rows than parts wants few rows.
        smaller = " or fewer --pool.num-workers and --pool.lanes-per-worker" if run.num_envs < parts * replicas else ""
        raise UserError(
            f"{where}: fragment environments: {run.num_envs} rows do not divide over {run.pool.num_workers} workers x "
            f"{lanes} lanes: use --run.num-envs {nearest_multiple(run.num_envs, parts * replicas)}{smaller}"
        )
    # The learner reads one slot while workers fill the next ones, as many as the lag allows.
    return PoolShape(
        num_workers=workers,
        lanes_per_worker=lanes,
        workers_per_lane=per_lane,
        rows_per_part=run.num_envs // (parts * replicas),
        rollout_length=run.rollout_length,
        num_slots=run.policy_lag + 2,
    )


def _should_share_lanes(run: RunConfig, replicas: int, resources: Resources | None) -> bool:
    """Returns whether workers share a lane, because an accelerator's calls take as long for few rows as for many."""
    if resources is None or (run.inference.jax_platform or resources.platform) == "cpu":
        return False
    # Merged calls join the lanes that are ready, and no worker waits for others.
    if run.inference.batching == "merged":
        return False
    # Hosts of a cluster, or learner processes, divide the workers of one replica later on, and lanes must not span them.
    return not run.cluster.is_used and (replicas > 1 or not run.distributed.is_on)


def _most_workers_per_lane(workers: int, lanes_per_worker: int) -> int:
    """Returns the largest number of workers that leaves a second lane to step while the first waits for actions."""
    if lanes_per_worker > 1 or workers == 1:
        return workers
    return next(count for count in range(workers // 2, 0, -1) if workers % count == 0)
