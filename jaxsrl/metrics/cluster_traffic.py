"""Traffic received from the nodes of a cluster: totals, and rates for records."""

import dataclasses
from collections.abc import Mapping

PREFIX = "cluster/"
HOSTS_LOST = "cluster/hosts_lost"
SERVERS_LOST = "cluster/servers_lost"
_SUMS = ("env_steps", "bytes", "slots", "lag_sum")
_RATES = ("env_steps", "bytes", "replay_received_bytes", "replay_sent_bytes", "samples")


@dataclasses.dataclass
class NodeTraffic:
    """Traffic of one node since the start of the run.

    Attributes:
        env_steps: env steps received.
        bytes: bytes received.
        slots: slots received.
        lag_sum: policy lag of arriving slots, in versions: the mean over each slot's steps, summed over slots.
    """

    env_steps: float = 0.0
    bytes: float = 0.0
    slots: float = 0.0
    lag_sum: float = 0.0


def traffic_totals(by_node: Mapping[str, NodeTraffic]) -> dict[str, float]:
    """Returns totals by metric name: `cluster/NODE/env_steps` and so on."""
    return {f"{PREFIX}{node}/{name}": getattr(traffic, name) for node, traffic in by_node.items() for name in _SUMS}


def traffic_values(totals: Mapping[str, float], gained: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Returns the values of a record for a cluster and each of its nodes; {} without a cluster.

    Args:
        totals: totals since the start of the run, by metric name; others than a cluster's are ignored.
        gained: increase of each total since the previous record.
        seconds: time since the previous record.
    """
    rates = {name: totals[name] for name in (HOSTS_LOST, SERVERS_LOST) if name in totals}
    for name, amount in gained.items():
        node, _, quantity = name.removeprefix(PREFIX).rpartition("/")
        if not name.startswith(PREFIX):
            continue
        where = f"{PREFIX}{node}/" if node else PREFIX
        if quantity in _RATES:
            rates[f"{where}{quantity}_per_second"] = amount / seconds
        elif quantity == "cpu_seconds":
            rates[f"{where}cpu_cores"] = max(0.0, amount) / seconds  # a restarted process counts from 0
        elif quantity == "memory_bytes":
            rates[name] = totals[name]
        elif quantity == "requests":
            rates |= _server_rates(where, gained, seconds)
        elif quantity == "lag_sum":
            slots = gained.get(f"{where}slots", 0.0)
            rates[f"{where}policy_lag"] = amount / slots if slots else 0.0
        elif quantity == "sample_wait_seconds":
            samples = gained.get(f"{where}samples", 0.0)
            rates |= {f"{where}sample_wait_ms": amount / samples * 1e3} if samples else {}
    return rates


def _server_rates(where: str, gained: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Returns rates of a node's inference servers: requests per second, rows per call, and mean wait of a request in ms."""
    requests, calls = gained[f"{where}requests"], gained.get(f"{where}calls", 0.0)
    rates = {f"{where}requests_per_second": requests / seconds}
    if requests and calls:
        rates[f"{where}inference_batch_rows"] = gained[f"{where}rows"] / calls
        rates[f"{where}inference_wait_ms"] = gained[f"{where}queued_seconds"] / requests * 1e3
    return rates
