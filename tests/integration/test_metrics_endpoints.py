"""What short runs tell of themselves: documented names, every fragment's share, Prometheus over HTTP; and disks that are full."""

import json
import re
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.config.parts import MetricsConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.metrics.prometheus_names import EXPORTED, LABELED, LAST_RECORD, OTHER
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

REPOSITORY = Path(__file__).parents[2]
DOCUMENT = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text()
SERVER = REPOSITORY / "jaxsrl" / "learner" / "parameter_server" / "async_server.py"
UPDATES = 4


def train(directory, plan_name="serial", suite="gymnasium", quiet=True, **changes):
    settings = {"num_envs": 8, "rollout_length": 8, "total_env_steps": 8 * 8 * UPDATES, "metrics_interval_seconds": 0.0}
    config = run_config(**{"name": "run", "directory": str(directory), "plan": plan_name, **settings, **changes})
    source = make_env(EnvConfig("CartPole-v1", suite=suite))
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=2), spec, NetworkConfig(hidden_sizes=(8,)))
    return run(PLANS[plan_name](config, Resources.detect()), agent, source, config, spec=spec, quiet=quiet)


def records(report):
    return [json.loads(line) for line in (report.directory / "metrics.jsonl").read_text().splitlines()]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def documented():
    """Patterns of the names in the first columns before the time breakdown: a word in capitals or * stands for anything."""
    tables = DOCUMENT.split("\n## Time breakdown")[0]
    rows = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    return [re.compile(re.sub(r"\\\*|[A-Z]{3,}", ".+", re.escape(name))) for name in names]


def undocumented(names):
    patterns = documented()
    return sorted(name for name in names if not any(pattern.fullmatch(name) for pattern in patterns))


def test_the_document_is_read_as_it_is_written():
    assert undocumented(["loss/policy", "utilization/any name/busy", "episode/return_mean"]) == []
    assert undocumented(["loss", "episode/return_median", "utilization/busy"]) == [
        "episode/return_median",
        "loss",
        "utilization/busy",
    ]


def test_metrics_of_agents_and_servers_are_documented():
    folders = (REPOSITORY / "agents", REPOSITORY / "jaxsrl" / "replay")
    sources = [*(path for folder in folders for path in folder.rglob("*.py")), SERVER]
    names = {name for path in sources for name in re.findall(r'"([a-z_]+/[a-z_/]+)":', path.read_text())}
    assert {"loss/policy", "exploration/epsilon", "server/staleness_mean"} <= names
    assert undocumented(names) == []


@pytest.mark.parametrize(
    ("plan_name", "changes", "known"),
    [
        (
            "single_learner_fine",
            {"pool_num_workers": 1},
            {"busy": {"environments", "inference", "learner"}, "wait": {"environments", "inference", "learner"}},
        ),
        pytest.param(
            "single_learner_coarse",
            {"pool_num_workers": 1},
            {"busy": {"environments", "inference", "learner"}, "wait": {"environments", "learner"}},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "central",
            {"pool_num_workers": 1, "learner_gradients": "asynchronous", "learner_num_replicas": 1},
            {
                "busy": {"environments", "inference", "learner", "server"},
                "wait": {"environments", "inference", "learner"},
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["fine", "coarse", "central"],
)
def test_metrics_of_plans_and_fragments_are_documented(tmp_path, plan_name, changes, known):
    written = records(train(tmp_path, plan_name, **changes))
    assert undocumented({name for record in written for name in record}) == []
    last = written[-1]
    for state, fragments in known.items():
        names = {name for name in last if name.startswith("utilization/") and name.endswith(f"/{state}")}
        assert names == {f"utilization/{fragment}/{state}" for fragment in fragments}
    shares = [record[name] for record in written for name in record if name.startswith("utilization/")]
    assert all(0.0 <= share <= 1.0 for share in shares)
    # The last record may follow the one before it at once; over all of them every fragment has worked.
    for fragment in known["busy"]:
        assert max(record[f"utilization/{fragment}/busy"] for record in written) > 0.0


@pytest.mark.slow
def test_on_devices_alone_the_learner_stands_for_the_program(tmp_path):
    written = records(train(tmp_path, "device_only", "jax"))
    assert undocumented({name for record in written for name in record}) == []
    assert {name for name in written[-1] if name.startswith("utilization/")} == {"utilization/learner/busy"}


@pytest.mark.slow
def test_host_replay_metrics_are_separate_from_learner(tmp_path):
    config = run_config(
        name="run",
        directory=str(tmp_path),
        plan="distributed_replay",
        num_envs=4,
        pool_num_workers=1,
        rollout_length=8,
        total_env_steps=4 * 8 * 12,
        metrics_interval_seconds=0.0,
    )
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    replay = ReplayConfig(capacity=512, batch_size=8, min_size=64, gradient_steps_per_env_step=1 / 32)
    agent = make_dqn(DQNConfig(replay=replay, total_updates=12), spec, NetworkConfig(hidden_sizes=(8,)))
    report = run(PLANS[config.plan](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)
    written = records(report)
    assert undocumented({name for record in written for name in record}) == []
    assert max(record["utilization/replay/busy"] for record in written) > 0.0
    assert max(record["utilization/learner/wait_on/replay"] for record in written) > 0.0


@pytest.mark.slow
def test_prometheus_serves_only_during_a_run(tmp_path, monkeypatch):
    port, scraped, enough = free_port(), [], threading.Event()

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            scraped.append(answer.read().decode())

    from jaxsrl.metrics.prometheus_sink import PrometheusSink

    write = PrometheusSink.write

    def write_and_scrape(self, record):
        write(self, record)
        if not enough.is_set():
            enough.set()
            scrape()

    monkeypatch.setattr(PrometheusSink, "write", write_and_scrape)
    report = train(tmp_path, metrics=MetricsConfig(prometheus_port=port, tensorboard=False))
    assert undocumented({name for record in records(report) for name in record}) == []
    (text,) = scraped
    families = {family.name: family for family in text_string_to_metric_families(text)}
    labels = {(sample.labels["run"], sample.labels["plan"]) for f in families.values() for sample in f.samples}
    assert labels == {("run", "serial")}
    assert families["jaxsrl_env_steps"].type == "counter"
    assert families["jaxsrl_env_steps"].samples[0].value in {64 * update for update in range(1, UPDATES + 1)}
    shares = {sample.labels["fragment"]: sample.value for sample in families["jaxsrl_fragment_busy_ratio"].samples}
    assert set(shares) == {"environments", "inference", "learner"}
    assert any(sample.labels["name"] == "loss/total" for sample in families[OTHER].samples)
    with pytest.raises(OSError, match="refused"):
        scrape()


def test_metrics_port_in_use_is_rejected_before_start(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port} for Prometheus"):
            train(tmp_path, "single_learner_fine", metrics=MetricsConfig(prometheus_port=port))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not (tmp_path / "run" / "checkpoints").exists() or not any((tmp_path / "run" / "checkpoints").iterdir())


def test_prometheus_names_and_types_are_documented():
    for metric in EXPORTED:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        (row,) = [line for line in DOCUMENT.splitlines() if line.startswith("| ") and f"`{name}`" in line.split("|")[1]]
        assert metric.kind in row.split("|")[2]
        assert f"`{metric.recorded}`" in row.split("|")[3]
    for name in (*(metric.name for metric in LABELED), OTHER, LAST_RECORD):
        assert any(f"`{name}`" in line.split("|")[1] for line in DOCUMENT.splitlines() if line.startswith("| "))


def test_run_with_unwritable_files_completes_and_logs_once(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    for name in ("metrics.jsonl", "log.txt"):
        (tmp_path / "run" / name).symlink_to("/dev/full")
    (tmp_path / "run" / "tensorboard").write_text("a file where a directory should be")
    report = train(tmp_path, quiet=False)
    assert report.num_updates == UPDATES
    told = capsys.readouterr()
    assert told.out.count("JsonlSink failed (OSError: [Errno 28] No space left on device)") == 1
    assert told.out.count("TensorBoardSink failed (FileExistsError") == 1
    assert "dropped by a sink" in told.out
    assert "cannot write" in told.err
    assert "log.txt" in told.err


@pytest.mark.slow
def test_resume_without_sinks_section_in_the_old_config(tmp_path):
    path = train(tmp_path, total_env_steps=8 * 8 * 2).directory / "config.json"
    saved = json.loads(path.read_text())
    del saved["experiment"]["run"]["metrics"]
    path.write_text(json.dumps(saved))
    with open(path.with_name("metrics.jsonl"), "a") as file:
        file.write('{"update": 3, "env_st')  # as a process that is killed leaves it
    report = train(tmp_path, metrics=MetricsConfig(tensorboard=False))
    assert [record["update"] for record in records(report)][-1] == UPDATES
    assert {record["update"] for record in records(report)} == {1, 2, 3, 4}
