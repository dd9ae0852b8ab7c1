"""The start-up files do as they say: what they start is a plan that can run, with the sizes that they have as they are."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import jaxsrl.cli.main

pytest.importorskip("ray")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NODES, CORES = 4, 16
# What Slurm and Ray would do, as far as the scripts are concerned.
STUBS = {
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "scontrol": 'if [ "$1" = show ]; then for n in 1 2 3 4; do echo node$n; done; else echo "$@" >> "$CALLS/scontrol"; fi',
    "hostname": "echo 10.0.0.1 fe80::1",
    "ray": 'echo "$1 ${RAY_AUTH_MODE:-} ${#RAY_AUTH_TOKEN}" >> "$CALLS/ray"',
    "python": 'printf "%s\\n" "$@" > "$CALLS/python"; echo "${RAY_ADDRESS:-}" > "$CALLS/address"; exit "$STATUS"',
}


@pytest.fixture
def slurm(tmp_path):
    """Runs a script as Slurm would, on four nodes; its exit status, and what it said. The stubs note how they were called."""
    calls = tmp_path / "calls"
    for directory in (calls, tmp_path / "bin"):
        directory.mkdir()
    for name, body in STUBS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def run(script, status=0):
        done = subprocess.run(
            [
                "/bin/bash",
                str(ROOT / "docs" / "deploy" / "slurm" / script),
                "experiments/ppo_cartpole.py",
                "--run.name",
                "mine",
            ],
            env={
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "BIN": str(tmp_path / "bin"),
                "PYTHON": str(tmp_path / "bin" / "python"),
                "CALLS": str(calls),
                "STATUS": str(status),
                "SLURM_JOB_NUM_NODES": str(NODES),
                "SLURM_CPUS_PER_TASK": str(CORES),
                "SLURM_JOB_NODELIST": "node[1-4]",
                "SLURM_JOB_ID": "7",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
        return done.returncode, done.stderr

    return run


def planned(capsys, words, processes):
    """The plan of a command line, with a cluster that is started here in place of the one that would be there."""
    flags = [word for word in words if not word.endswith(".py")]
    while "--distributed.coordinator" in flags:
        begin = flags.index("--distributed.coordinator")
        del flags[begin : begin + 2]
    for name in ("--distributed.num-processes", "--distributed.process-id"):
        if name in flags:
            begin = flags.index(name)
            del flags[begin : begin + 2]
    flags = ["local" if word == "auto" else word for word in flags]
    several = ["--distributed.coordinator", "h:1", "--distributed.num-processes", str(processes)]
    several += ["--distributed.process-id", "0"]
    arguments = ["plan", "experiments/ppo_cartpole.py", "--json", "--gpus", "1", "--cores", str(CORES)]
    jaxsrl.cli.main.main([*arguments, *flags, *(several if processes > 1 else [])])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("script", "processes", "hosts"),
    [("learners.sbatch", 4, 0), ("environment_hosts.sbatch", 1, 4), ("learners_and_hosts.sbatch", 2, 4)],
)
def test_slurm_script_run_has_a_plan_and_fits_its_nodes(slurm, tmp_path, capsys, script, processes, hosts):
    status, said = slurm(script)
    assert status == 0, said
    words = (tmp_path / "calls" / "python").read_text().splitlines()
    assert words[-2:] == ["--run.name", "mine"]
    found = planned(capsys, words, processes)
    environments = found["fragments"][0]
    assert len(environments.get("nodes", [])) == hosts
    assert found["shape"]["num_workers"] + 1 <= (CORES - 1 if hosts else CORES)
    if hosts:
        assert (tmp_path / "calls" / "address").read_text() == "10.0.0.1:6379\n"
        calls = (tmp_path / "calls" / "ray").read_text().splitlines()
        assert calls.count("start token 64") == 2  # the head, and the others
        assert "status token 64" in calls


@pytest.mark.parametrize("script", ["learners.sbatch", "environment_hosts.sbatch", "learners_and_hosts.sbatch"])
def test_a_run_that_asks_to_be_tried_again_is_queued_again(slurm, tmp_path, script):
    status, said = slurm(script, status=75)
    assert status == 75, said
    assert (tmp_path / "calls" / "scontrol").read_text() == "requeue 7\n"


@pytest.mark.parametrize(("name", "hosts"), [("learners.yaml", 0), ("learners_and_hosts.yaml", 4)])
def test_kubernetes_job_run_has_a_plan_and_fits_its_pods(capsys, name, hosts):
    yaml = pytest.importorskip("yaml")
    documents = {
        one["kind"]: one for one in yaml.safe_load_all((ROOT / "docs" / "deploy" / "kubernetes" / name).read_text())
    }
    command = documents["Job"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    words = shlex.split(command[command.index("exec python") :])[2:]
    found = planned(capsys, words, documents["Job"]["spec"]["parallelism"])
    environments = found["fragments"][0]
    assert len(environments.get("nodes", [])) == hosts
    if hosts:
        deployed = documents["Deployment"]["spec"]
        started = deployed["template"]["spec"]["containers"][0]["args"][0]
        cores = int(re.search(r"--num-cpus (\d+)", started).group(1))  # pyright: ignore
        assert deployed["replicas"] == hosts
        assert found["shape"]["num_workers"] + 1 <= cores
        secrets = [one for one in deployed["template"]["spec"]["containers"][0]["env"] if "valueFrom" in one]
        assert secrets[0]["name"] == "RAY_AUTH_TOKEN"
