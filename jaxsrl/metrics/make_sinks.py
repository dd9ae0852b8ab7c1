"""Metrics sinks of a run, from its configuration."""

from collections.abc import Callable
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.config.parts import MetricsConfig
from jaxsrl.metrics.console import ConsoleSink
from jaxsrl.metrics.evaluations import read_evaluations
from jaxsrl.metrics.live_state import RunInfo
from jaxsrl.metrics.record_file import read_returns
from jaxsrl.metrics.sinks import JsonlSink, MetricsSink, Sinks
from jaxsrl.metrics.tensorboard_sink import TensorBoardSink

RECORDS, TENSORBOARD = "metrics.jsonl", "tensorboard"


def make_sinks(
    options: MetricsConfig, directory: Path, facts: RunInfo, say: Callable[[str], None], quiet: bool = False
) -> Sinks:
    """Opens the sinks. Requested sinks that are unavailable raise before the run starts.

    Args:
        options: Choice of sinks.
        directory: directory of the run.
        facts: constants of the run.
        say: called once for each sink that fails.
        quiet: whether to omit the terminal.

    Raises:
        UserError: If the Prometheus port is in use, or W&B is not installed or not logged in.
    """
    sinks: list[MetricsSink] = []
    try:
        if options.prometheus_port:
            from jaxsrl.metrics.prometheus_sink import PrometheusSink

            address, port = options.prometheus_address, options.prometheus_port
            sinks.append(PrometheusSink(address, port, directory.name, facts.plan.name))
        if options.wandb:
            sinks += _wandb_sink(options, directory, say)
        if not quiet:
            # Read before the file grows: the curve of a resumed run continues.
            returns = read_returns(directory / RECORDS, facts.first_env_steps) if facts.first_update else []
            sinks.append(ConsoleSink(facts, returns, read_evaluations(directory)))
        sinks.append(JsonlSink(directory / RECORDS))
        if options.tensorboard:
            sinks.append(TensorBoardSink(directory / TENSORBOARD))
    except BaseException:
        Sinks(sinks, say).close()
        raise
    return Sinks(sinks, say)


def _wandb_sink(options: MetricsConfig, directory: Path, say: Callable[[str], None]) -> list[MetricsSink]:
    """Returns the sink, or [] if the service cannot be reached: training continues without it."""
    from jaxsrl.metrics.wandb_sink import WandbSink

    try:
        return [WandbSink(options, directory)]
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  the package raises various errors if its service is down
        say(f"metrics: cannot reach Weights & Biases ({error}): training continues without it")
        return []
