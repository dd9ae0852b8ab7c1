"""Configuration of metric sinks besides metrics.jsonl and the terminal."""

import dataclasses

from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class MetricsConfig:
    """Sinks of a run. A failing sink never ends it: rejected records are counted (`metrics/dropped_records_total`).

    Attributes:
        interval_seconds: seconds between records.
        tensorboard: write TensorBoard event files into the run directory.
        wandb: also send records to Weights & Biases (WANDB_MODE=offline keeps them in the run directory). A resumed run continues
            the same run there. Needs jaxsrl[wandb].
        wandb_project: project there.
        wandb_entity: user or team there; "" for that of the API key.
        prometheus_port: TCP port where Prometheus may scrape the newest record, as http://ADDRESS:PORT/metrics; 0 for none.
        prometheus_address: address of the port. Other than a loopback address, it lets anyone who reaches it read the metrics.
    """

    interval_seconds: float = 2.0
    tensorboard: bool = True
    wandb: bool = False
    wandb_project: str = "jaxsrl"
    wandb_entity: str = ""
    prometheus_port: int = 0
    prometheus_address: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if self.interval_seconds < 0:
            raise UserError(f"metrics.interval_seconds must not be negative: got {self.interval_seconds}")
        if not 0 <= self.prometheus_port < 1 << 16:
            raise UserError(
                f"metrics.prometheus_port must be from 1 to 65535, or 0 for none: got {self.prometheus_port}"
            )
