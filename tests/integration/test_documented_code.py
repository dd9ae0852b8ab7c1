"""Code that README.md and the documentation tell users to write runs as it stands there, with smaller budgets."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest

from envpool_bridge.envs.concurrent_step import find_halves

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_of(page, beginning):
    """The one block of a page that begins so, with fewer env steps."""
    found = [block for block in _BLOCK.findall((ROOT / page).read_text()) if block.startswith(beginning)]
    assert len(found) == 1, f"{page} has {len(found)} blocks that begin with {beginning!r}"
    smaller, replaced = re.subn(r"env_steps=[\d_]+", "env_steps=4096", found[0])
    assert replaced == 1
    return smaller


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "beginning", "says"),
    [
        (
            "README.md",
            "import jaxsrl",
            r"evaluation return \d+\S*; run directory runs/my_experiment_ppo_CartPole-v1_learning_rate=0.001_seed0",
        ),
        ("docs/getting_started/quickstart.md", "import jaxsrl", r"^\d+\.\d+$"),
        (
            "docs/how_to/many_seeds.md",
            "import jaxsrl",
            r"^runs/my_experiment_ppo_CartPole-v1_jax_num_envs=4_rollout_length=128_seed2 \d+\.\d+$",
        ),
        ("docs/how_to/tasks_and_stages.md", "import jaxsrl\nfrom agents", r"^\[[\d. ]+"),
        ("docs/how_to/custom_environment.md", "# my_experiment.py", r"^-\d+\.\d+$"),
    ],
)
def test_a_documented_program_runs_as_it_stands(page, beginning, says, tmp_path):
    script = tmp_path / "my_experiment.py"
    script.write_text(code_of(page, beginning))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(says, done.stdout, re.MULTILINE), done.stdout


def test_the_documented_pool_is_a_vector_environment():
    block = next(block for block in _BLOCK.findall((ROOT / "README.md").read_text()) if "PoolVectorEnv" in block)
    names = {}
    exec(block.replace("num_envs=64", "num_envs=4"), names)
    try:
        observation, _ = names["envs"].reset(seed=0)
    finally:
        names["envs"].close()
    assert observation.shape == (4, 4)


def test_documented_waiting_environment_steps_asynchronously():
    page = (ROOT / "docs/how_to/custom_environment.md").read_text()
    block = next(block for block in _BLOCK.findall(page) if "step_async" in block)
    names: dict = {"gymnasium": gymnasium}
    exec(block, names)

    class Connection:
        sent: ClassVar[list[int]] = []

        def send(self, action):
            self.sent.append(action)

        def recv(self):
            return 7, 0.5, False

    env = names["RemoteGame"]()
    env.connection = Connection()
    halves = find_halves(env)
    assert halves is not None
    assert (halves.start(3), halves.wait(), env.step(4)) == (None, *[(7, 0.5, False, False, {})] * 2)
    assert Connection.sent == [3, 4]
