"""What the nodes of a cluster have sent, counted; and as rates for records."""

import dataclasses
from collections.abc import Mapping

PREFIX = "cluster/"
HOSTS_LOST = "cluster/hosts_lost"
SERVERS_LOST = "cluster/servers_lost"
_SUMS = ("env_steps", "bytes", "slots", "lag_sum")
_RATES = ("env_steps", "bytes", "replay_received_bytes", "replay_sent_bytes", "samples")


@dataclasses.dataclass
class NodeTraffic:
    """Of one node, since the run began.

    Attributes:
        env_steps: received.
        bytes: received.
        slots: received.
        lag_sum: versions that the slots' steps were behind when they arrived; each slot's mean, summed.
    """

    env_steps: float = 0.0
    bytes: float = 0.0
    slots: float = 0.0
    lag_sum: float = 0.0


def traffic_totals(by_node: Mapping[str, NodeTraffic]) -> dict[str, float]:
    """Totals by metric name: `cluster/NODE/env_steps` and so on."""
    return {f"{PREFIX}{node}/{name}": getattr(traffic, name) for node, traffic in by_node.items() for name in _SUMS}


def traffic_values(totals: Mapping[str, float], gained: Mapping[str, float], seconds: float) -> dict[str, float]:
    """What a record says of a cluster and each of its nodes; {} without one.

    Args:
        totals: since the run began, by metric name; others than a cluster's are not looked at.
        gained: by how much they grew since the record before.
        seconds: since then.
    """
    rates = {name: totals[name] for name in (HOSTS_LOST, SERVERS_LOST) if name in totals}
    for name, amount in gained.items():
        node, _, what = name.removeprefix(PREFIX).rpartition("/")
        if not name.startswith(PREFIX):
            continue
        where = f"{PREFIX}{node}/" if node else PREFIX
        if what in _RATES:
            rates[f"{where}{what}_per_second"] = amount / seconds
        elif what == "requests":
            rates |= _of_servers(where, gained, seconds)
        elif what == "lag_sum":
            slots = gained.get(f"{where}slots", 0.0)
            rates[f"{where}policy_lag"] = amount / slots if slots else 0.0
        elif what == "sample_wait_seconds":
            samples = gained.get(f"{where}samples", 0.0)
            rates |= {f"{where}sample_wait_ms": amount / samples * 1e3} if samples else {}
    return rates


def _of_servers(where: str, gained: Mapping[str, float], seconds: float) -> dict[str, float]:
    """What inference servers of a node did: requests a second, rows a call, and the mean milliseconds that a request waited."""
    requests, calls = gained[f"{where}requests"], gained.get(f"{where}calls", 0.0)
    rates = {f"{where}requests_per_second": requests / seconds}
    if requests and calls:
        rates[f"{where}inference_batch_rows"] = gained[f"{where}rows"] / calls
        rates[f"{where}inference_wait_ms"] = gained[f"{where}queued_seconds"] / requests * 1e3
    return rates
