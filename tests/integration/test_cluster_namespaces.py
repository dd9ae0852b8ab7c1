"""Environment hosts on machines that share no network, no loopback interface and no memory with the learner's."""

import contextlib
import json
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.integration.machines_apart import Machines, NoNamespacesError, namespaces

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
HOSTS = 3
LEARNED = ("loss/total", "gradient/norm", "policy/entropy", "episode/return_mean", "episode/count")
SHAPE = ("--pool.num-workers", "3", "--run.num-envs", "96", "--plan", "single_learner_coarse")


@pytest.fixture(scope="module")
def machines():
    before = namespaces()
    try:
        with contextlib.closing(Machines(HOSTS, cores=2)) as started:
            yield started
    except NoNamespacesError as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert namespaces() == before


def trained(machines, tmp_path, experiment, *flags, cluster="auto"):
    """The run directory of an experiment that ran on the head, or where `cluster` is "" without any."""
    where = ("--run.directory", tmp_path, "--run.name", cluster or "here")
    on = ("--cluster.address", cluster) if cluster else ()
    done = machines.run_at_head(
        sys.executable, ROOT / "experiments" / experiment, *on, *where, *SHAPE, *flags, limit_seconds=600.0
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return tmp_path / (cluster or "here")


def curve(directory):
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {record["update"]: [record.get(name) for name in LEARNED] for record in records if "loss/total" in record}


@pytest.mark.parametrize(
    ("experiment", "env_steps"), [("ppo_cartpole.py", 300_000), ("impala_cartpole.py", 500_000)], ids=["ppo", "impala"]
)
def test_cartpole_is_balanced_through_hosts_on_other_machines(machines, tmp_path, experiment, env_steps):
    directory = trained(machines, tmp_path, experiment, "--run.total-env-steps", str(env_steps))
    assert json.loads((directory / "eval.json").read_text())["mean_return"] >= 475.0
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    sent = {name.split("/")[1] for record in records for name in record if name.endswith("/env_steps_per_second")}
    assert {"10.77.0.2", "10.77.0.3", "10.77.0.4"} <= sent


def test_at_lag_0_the_curve_is_that_of_one_machine(machines, tmp_path):
    flags = ("--run.total-env-steps", "30720", "--run.max-policy-lag", "0", "--metrics.interval-seconds", "0")
    apart = curve(trained(machines, tmp_path, "ppo_cartpole.py", *flags))
    together = curve(trained(machines, tmp_path, "ppo_cartpole.py", *flags, cluster=""))
    assert len(together) == 10
    assert apart == together


def test_a_machine_that_loses_its_power_is_done_without(machines, tmp_path):
    # The last of these tests, since the machine stays off.
    found = tmp_path / "auto" / "metrics.jsonl"

    def cut_when_it_learns():
        deadline = time.monotonic() + 300.0
        while time.monotonic() < deadline and not (found.exists() and len(found.read_text().splitlines()) >= 3):
            time.sleep(0.2)
        machines.cut(2)

    cutting = threading.Thread(target=cut_when_it_learns)
    cutting.start()
    directory = trained(
        machines, tmp_path, "ppo_cartpole.py", "--run.total-env-steps", "600000", "--metrics.interval-seconds", "1"
    )
    cutting.join()
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [record.get("cluster/hosts_lost") for record in records if "cluster/hosts_lost" in record][-1] == 1
    assert records[-1]["env_steps"] >= 600_000
    assert json.loads((directory / "eval.json").read_text())["mean_return"] >= 475.0
