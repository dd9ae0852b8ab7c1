"""Start-up files: shells and parsers accept them, and the flags in them are flags that there are."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jaxsrl.config.parts import DistributedConfig
from jaxsrl.config.run_config import RunConfig

ROOT = Path(__file__).parents[2]
SLURM = sorted((ROOT / "docs" / "deploy" / "slurm").glob("*.sbatch"))
KUBERNETES = sorted((ROOT / "docs" / "deploy" / "kubernetes").glob("*.yaml"))


def test_there_are_files_for_both():
    assert SLURM
    assert KUBERNETES


@pytest.mark.parametrize("path", SLURM, ids=lambda path: path.name)
def test_a_shell_accepts_the_slurm_script(path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    done = subprocess.run([bash, "-n", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_job_starts_the_declared_processes(path):
    yaml = pytest.importorskip("yaml")
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(path.read_text()))
    kinds = {document["kind"]: document for document in documents}
    assert {"Service", "Job", "NetworkPolicy"} <= set(kinds)
    job = kinds["Job"]["spec"]
    command = job["template"]["spec"]["containers"][0]["args"][0]
    number = int(re.search(r"num-processes (\d+)", command).group(1))  # pyright: ignore
    assert job["completions"] == job["parallelism"] == number
    host = re.search(r"coordinator (\S+):\d+", command).group(1)  # pyright: ignore
    assert host == f"{kinds['Job']['metadata']['name']}-0.{kinds['Service']['metadata']['name']}"
    assert job["template"]["spec"]["subdomain"] == kinds["Service"]["metadata"]["name"]


@pytest.mark.parametrize("path", [*SLURM, *KUBERNETES], ids=lambda path: path.name)
def test_every_flag_of_a_run_in_the_files_exists(path):
    fields = {f"run.{name}" for name in RunConfig.__dataclass_fields__}
    fields |= {f"run.distributed.{name}" for name in DistributedConfig.__dataclass_fields__}
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    used = set(re.findall(r"--(run\.[a-z.-]+)", "\n".join(lines)))
    assert used
    assert {flag.replace("-", "_") for flag in used} <= fields
