"""Predictions of the calibrated simulation for clusters: of a given size, and those of the SRL and MSRL papers."""

import dataclasses
from typing import Any

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.planner.calibration import Calibration
from jaxsrl.planner.simulator.scenario import NETWORKS, Scenario
from jaxsrl.planner.simulator.simulate import SimulationResult, simulate


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Machines of a prediction.

    Attributes:
        name: name for tables.
        cores: total cores that step environments.
        gpus: GPUs, one learner each.
        cores_per_host: cores per environment host, one of which acts.
        rows_per_core: environments per worker process, in two lanes.
        network: name of one of `NETWORKS`.
        gpu_flops: operations per second of an update on a GPU: assumed.
    """

    name: str
    cores: int
    gpus: int
    cores_per_host: int = 64
    rows_per_core: int = 8
    network: str = "hdr"
    gpu_flops: float = 2e12


_CORES_TO_ACT = 4

SRL = Cluster("SRL's 15,000 cores and 32 GPUs", 15_000, 32)
MSRL = Cluster("MSRL's 64 GPUs, 60 cores each", 64 * 60, 64, cores_per_host=60)


def predict(calibration: Calibration, cluster: Cluster, updates: int = 6) -> dict[str, Any]:
    """Returns env steps per second, the bottleneck and the assumptions, for the fastest way to share inference calls.

    Raises:
        UserError: fewer cores than one host needs for each GPU.
    """
    if cluster.network not in NETWORKS:
        raise UserError(f"expected a network of {', '.join(NETWORKS)}: got {cluster.network!r}")
    hosts = cluster.cores // cluster.gpus // cluster.cores_per_host
    size = cluster.cores_per_host
    if not hosts:
        hosts, size = 1, cluster.cores // cluster.gpus
    if size < 2:
        raise UserError(
            f"{cluster.cores} cores for {cluster.gpus} GPUs leave {size} per GPU: an environment host needs at least two; "
            f"use --cores {2 * cluster.gpus} or more"
        )
    network = NETWORKS[cluster.network]
    tried: list[tuple[Scenario, SimulationResult]] = []
    for shape in _shapes(size, cluster.rows_per_core, calibration.rollout_length):
        scenario = calibration.cluster(shape, size, hosts, cluster.gpus, network, cluster.gpu_flops)
        tried.append((scenario, simulate(scenario, updates)))
    scenario, fastest = max(tried, key=lambda one: one[1].env_steps_per_second)
    alone = scenario.num_rows // cluster.rows_per_core / calibration.row_seconds
    return {
        "cluster": cluster.name,
        "cores": scenario.num_cores,
        "gpus": cluster.gpus,
        "hosts": hosts * cluster.gpus,
        "rows": scenario.num_rows,
        "workers_per_lane": scenario.shape.workers_per_lane,
        "env_steps_per_second": fastest.env_steps_per_second,
        "share_of_bare_cores": fastest.env_steps_per_second / alone,
        "updates_per_second": fastest.updates_per_second,
        "limit": fastest.limit,
        **{f"{name} busy": share for name, share in fastest.busy.items()},
        "network": network.name,
        "gpu_flops": cluster.gpu_flops,
        "events": fastest.events,
    }


def _shapes(cores: int, rows_per_core: int, rollout_length: int) -> list[PoolShape]:
    """Returns pools of a host at lag 1: two lanes per worker, shared by one, some or all workers.

    Some cores are left for inference.
    """
    workers = cores - _CORES_TO_ACT if cores > 2 * _CORES_TO_ACT else cores - 1
    shares = sorted({1, max(share for share in range(1, 9) if workers % share == 0), workers})
    return [PoolShape(workers, 2, share, max(1, rows_per_core // 2), rollout_length, 3) for share in shares]
