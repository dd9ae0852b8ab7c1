"""The sinks of a run, as its configuration wants them."""

from collections.abc import Callable
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.config.metrics_config import MetricsConfig
from jaxsrl.metrics.console import ConsoleSink
from jaxsrl.metrics.live_state import RunInfo
from jaxsrl.metrics.read_records import read_records
from jaxsrl.metrics.sinks import JsonlSink, MetricsSink, Sinks
from jaxsrl.metrics.tensorboard_sink import TensorBoardSink

RECORDS, TENSORBOARD = "metrics.jsonl", "tensorboard"


def make_sinks(
    options: MetricsConfig, directory: Path, facts: RunInfo, say: Callable[[str], None], quiet: bool = False
) -> Sinks:
    """Opens them; what the user asked for and cannot have is refused before anything of the run starts.

    Args:
        options: which.
        directory: of the run.
        facts: of the run.
        say: told once of each sink that fails.
        quiet: nothing on the terminal.

    Raises:
        UserError: Prometheus' port is in use, or W&B is not installed or not logged in.
    """
    sinks: list[MetricsSink] = []
    try:
        if options.prometheus_port:
            from jaxsrl.metrics.prometheus_sink import PrometheusSink

            address, port = options.prometheus_address, options.prometheus_port
            sinks.append(PrometheusSink(address, port, directory.name, facts.plan.policy))
        if options.wandb:
            sinks += _wandb_sink(options, directory, say)
        if not quiet:
            # Before the file grows: on a resumed run the curve goes on where it was.
            seen = read_records(directory / RECORDS) if facts.first_update else []
            sinks.append(ConsoleSink(facts, [record for record in seen if record.update <= facts.first_update]))
        sinks.append(JsonlSink(directory / RECORDS))
        if options.tensorboard:
            sinks.append(TensorBoardSink(directory / TENSORBOARD))
    except BaseException:
        Sinks(sinks, say).close()
        raise
    return Sinks(sinks, say)


def _wandb_sink(options: MetricsConfig, directory: Path, say: Callable[[str], None]) -> list[MetricsSink]:
    """The sink; none where its service cannot be reached, which is no reason not to train."""
    from jaxsrl.metrics.wandb_sink import WandbSink

    try:
        return [WandbSink(options, directory)]
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a service that is down makes its package raise
        say(f"metrics: Weights & Biases cannot be reached ({error}): this process trains without it")
        return []
