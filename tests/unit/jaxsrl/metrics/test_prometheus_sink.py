"""Prometheus' endpoint: names, units, labels; and a port that cannot be had."""

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from envpool_bridge.errors import UserError
from jaxsrl.config.parts import MetricsConfig
from jaxsrl.metrics.prometheus_names import EXPORTED
from jaxsrl.metrics.prometheus_sink import PrometheusSink
from tests.support.metric_records import record


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def sink(port):
    made = PrometheusSink("127.0.0.1", port, run="r1", plan="serial")
    yield made
    made.close()


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (
            sample.name,
            *(sample.labels[name] for name in ("fragment", "process", "gpu", "name") if name in sample.labels),
        ): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_newest_record_is_told_in_base_units(sink, port):
    sink.write(record(1, **{"inference/latency_ms": 9.0}))
    shares = {"utilization/learner/busy": 0.5, "utilization/learner/wait": 0.25}
    used = {"process/workers/memory_bytes": 4096.0, "process/workers/cpu_cores": 1.5, "gpu/1/busy": 0.25}
    sink.write(record(3, **{"inference/latency_ms": 2.0, "loss/value": 0.75, "episode/count": 12.0, **shares, **used}))
    found = scrape(port)
    values = {name: sample.value for name, sample in found.items()}
    assert values["jaxsrl_updates_total",] == 3
    assert values["jaxsrl_env_steps_total",] == 192
    assert values["jaxsrl_frames_total",] == 768
    assert values["jaxsrl_train_seconds_total",] == 1.5
    assert values["jaxsrl_episodes_total",] == 12
    assert values["jaxsrl_inference_latency_seconds",] == pytest.approx(0.002)
    assert values["jaxsrl_fragment_busy_ratio", "learner"] == 0.5
    assert values["jaxsrl_fragment_wait_ratio", "learner"] == 0.25
    assert values["jaxsrl_process_memory_bytes", "workers"] == 4096.0
    assert values["jaxsrl_process_cpu_cores", "workers"] == 1.5
    assert values["jaxsrl_gpu_busy_ratio", "1"] == 0.25
    assert values["jaxsrl_metric", "loss/value"] == 0.75
    assert not any(name[0].startswith("jaxsrl_episode_return") for name in values)  # none has ended
    assert all((sample.labels["run"], sample.labels["plan"]) == ("r1", "serial") for sample in found.values())


def test_prometheus_answers_before_the_first_record(sink, port):
    assert scrape(port) == {}


def test_a_port_in_use_is_refused_with_what_to_do(sink, port):
    with pytest.raises(UserError, match=rf"127.0.0.1:{port} for Prometheus .*--metrics.prometheus-port"):
        PrometheusSink("127.0.0.1", port, run="r2", plan="serial")


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(UserError, match="prometheus-address"):
        PrometheusSink("192.0.2.1", 9999, run="r", plan="serial")


def test_nobody_listens_after_the_run(sink, port):
    sink.close()
    sink.close()
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))


def test_prometheus_names_are_unique_with_fragment_labels():
    assert len({metric.name for metric in EXPORTED}) == len({metric.recorded for metric in EXPORTED}) == len(EXPORTED)
    assert all(not metric.name.endswith("_total") for metric in EXPORTED)


@pytest.mark.parametrize("port", [-1, 1 << 16])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(UserError, match=f"prometheus_port must be from 1 to 65535, or 0 for none: got {port}"):
        MetricsConfig(prometheus_port=port)
