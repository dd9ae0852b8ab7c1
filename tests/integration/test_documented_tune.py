"""Files and programs of the pages about configuration files and sweeps work as they stand there, with smaller budgets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.experiment import load_experiment
from jaxsrl.tune.space import read_space
from jaxsrl.tune.study import Sweep

ROOT = Path(__file__).parents[2]


def read_block(page, kind):
    (block,) = re.findall(rf"^```{kind}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return block


def test_documented_config_file_sets_options(tmp_path):
    (tmp_path / "options.yaml").write_text(read_block("docs/how_to/configuration_files.md", "yaml"))
    flags = ["--config", str(tmp_path / "options.yaml"), "--run.seed", "5"]
    experiment = load_experiment(find_experiment("ppo_cartpole"), flags)
    run = experiment.run
    assert (run.pool.num_workers, run.seed, run.total_env_steps) == (4, 5, 200_000)
    assert experiment.agent.learning_rate == 1e-4


def test_documented_space_fits_its_experiment(tmp_path):
    (tmp_path / "space.toml").write_text(read_block("docs/how_to/tune.md", "toml"))
    first = {name: entry.first for name, entry in read_space(tmp_path / "space.toml").items()}
    experiment = Sweep(str(find_experiment("ppo_cartpole")), {}).make_experiment(first)
    assert (experiment.agent.num_epochs, experiment.agent.num_minibatches) == (1, 2)


@pytest.mark.slow
def test_documented_ray_tune_program_runs(tmp_path):
    pytest.importorskip("ray.tune", reason="Ray Tune is not installed: pip install 'ray[tune]'", exc_type=ImportError)
    code = read_block("docs/how_to/tune.md", "python")
    code = code.replace("50_000", "4_096").replace("5_000", "1_000").replace("num_samples=8", "num_samples=2")
    (tmp_path / "ray_tune.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "ray_tune.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"'agent.learning_rate': .* \d+\.\d+$", done.stdout, re.MULTILINE), done.stdout
