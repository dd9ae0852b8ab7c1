"""Newest record over HTTP, for Prometheus to scrape."""

import re
import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from envpool_bridge.errors import UserError
from jaxsrl.metrics.prometheus_names import EXPORTED, LABELED, LAST_RECORD, OTHER
from jaxsrl.metrics.sinks import Record

_JOIN_SECONDS = 5.0


class PrometheusSink:
    """HTTP server that answers with the newest record. Every sample has the labels `run` and `plan`.

    Thread-safety: `write` and `close` in one thread; requests are answered in others.

    Raises:
        UserError: If the port cannot be bound.
    """

    def __init__(self, address: str, port: int, run: str, plan: str) -> None:
        self._newest = _NewestRecord(run, plan)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._newest)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError as error:
            raise UserError(
                f"cannot listen on {address}:{port} for Prometheus ({error.strerror}): choose another "
                f"--metrics.prometheus-port, or an address of this machine as --metrics.prometheus-address"
            ) from error
        self._closed = False

    def write(self, record: Record) -> None:
        """Replaces the record that requests get."""
        self._newest.record = (record, time.time())

    def close(self) -> None:
        """Stops listening; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_JOIN_SECONDS)


class _NewestRecord(Collector):
    """Newest record as Prometheus metrics, converted on request; empty before the first record."""

    def __init__(self, run: str, plan: str) -> None:
        self.record: tuple[Record, float] | None = None  # replaced atomically
        self._labels = {"run": run, "plan": plan}

    def collect(self) -> Iterator[Metric]:
        """Yields every metric of the newest record."""
        if self.record is None:
            return
        record, written = self.record
        values = record.to_json()
        for metric in EXPORTED:
            if metric.recorded in values:
                make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                yield self._family(make, metric.name, metric.help, [values.pop(metric.recorded) * metric.scale])
        for metric in LABELED:
            pattern = re.compile(metric.recorded)
            matches = [match for recorded in values if (match := pattern.fullmatch(recorded))]
            by_label = {match[1]: values.pop(match[0]) for match in matches}
            by = (metric.label, list(by_label))
            yield self._family(GaugeMetricFamily, metric.name, metric.help, list(by_label.values()), by)
        text = "Other numbers of the newest record, by their names in metrics.jsonl."
        yield self._family(GaugeMetricFamily, OTHER, text, list(values.values()), ("name", list(values)))
        yield self._family(GaugeMetricFamily, LAST_RECORD, "Unix time of the newest record.", [written])

    def _family(
        self,
        make: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        text: str,
        values: Sequence[float],
        by: tuple[str, Sequence[str]] | None = None,
    ) -> Metric:
        family = make(name, text, labels=[*self._labels, *([by[0]] if by else [])])
        for index, value in enumerate(values):
            family.add_metric([*self._labels.values(), *([by[1][index]] if by else [])], value)
        return family
