"""What the calibrated simulation says of clusters: of a size that was asked for, and of those that papers tell of."""

import dataclasses
from typing import Any

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.planner.calibration import Calibration
from jaxsrl.planner.simulator.networks import NETWORKS
from jaxsrl.planner.simulator.scenario import Scenario
from jaxsrl.planner.simulator.simulate import Simulated, simulate


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Machines to predict for.

    Attributes:
        name: for people.
        cores: that step environments, in all.
        gpus: that learn, one learner each.
        cores_a_host: of an environment host, one of which acts.
        rows_a_core: environments of a worker process, in two lanes.
        network: name of one of `NETWORKS`.
        gpu_flops: operations per second that an update reaches on a GPU: assumed.
    """

    name: str
    cores: int
    gpus: int
    cores_a_host: int = 64
    rows_a_core: int = 8
    network: str = "hdr"
    gpu_flops: float = 2e12


_CORES_TO_ACT = 4

SRL = Cluster("SRL's 15,000 cores and 32 GPUs", 15_000, 32)
MSRL = Cluster("MSRL's 64 GPUs, 60 cores each", 64 * 60, 64, cores_a_host=60)


def predict(calibration: Calibration, cluster: Cluster, updates: int = 6) -> dict[str, Any]:
    """Env steps per second, what limits them, and what was assumed; of the ways to share calls that act, the fastest.

    Raises:
        UserError: fewer cores than one host needs for each GPU.
    """
    if cluster.network not in NETWORKS:
        raise UserError(f"expected a network of {', '.join(NETWORKS)}: got {cluster.network!r}")
    hosts = cluster.cores // cluster.gpus // cluster.cores_a_host
    size = cluster.cores_a_host
    if not hosts:
        hosts, size = 1, cluster.cores // cluster.gpus
    if size < 2:
        raise UserError(
            f"{cluster.cores} cores for {cluster.gpus} GPUs leave {size} a GPU: an environment host needs two at least; "
            f"use --cores {2 * cluster.gpus} or more"
        )
    network = NETWORKS[cluster.network]
    tried: list[tuple[Scenario, Simulated]] = []
    for shape in _shapes(size, cluster.rows_a_core, calibration.rollout_length):
        scenario = calibration.cluster(shape, size, hosts, cluster.gpus, network, cluster.gpu_flops)
        tried.append((scenario, simulate(scenario, updates)))
    scenario, found = max(tried, key=lambda one: one[1].env_steps_per_second)
    alone = scenario.num_rows // cluster.rows_a_core / calibration.row_seconds
    return {
        "cluster": cluster.name,
        "cores": scenario.num_cores,
        "gpus": cluster.gpus,
        "hosts": hosts * cluster.gpus,
        "rows": scenario.num_rows,
        "workers_per_lane": scenario.shape.workers_per_lane,
        "env_steps_per_second": found.env_steps_per_second,
        "share_of_bare_cores": found.env_steps_per_second / alone,
        "updates_per_second": found.updates_per_second,
        "limit": found.limit,
        **{f"{name} busy": share for name, share in found.busy.items()},
        "network": network.name,
        "gpu_flops": cluster.gpu_flops,
        "events": found.events,
    }


def _shapes(cores: int, rows_a_core: int, rollout_length: int) -> list[PoolShape]:
    """A host's pool at lag 1: two lanes a worker, shared by one, some or all of its workers. A few cores are left to who acts."""
    workers = cores - _CORES_TO_ACT if cores > 2 * _CORES_TO_ACT else cores - 1
    shares = sorted({1, max(one for one in range(1, 9) if workers % one == 0), workers})
    return [PoolShape(workers, 2, share, max(1, rows_a_core // 2), rollout_length, 3) for share in shares]
