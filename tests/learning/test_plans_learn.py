"""PPO solves CartPole under every plan, started as users start it: the same script, the same agent file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsrl.plan.policies import PLANS, REPLAY_PLANS

ROOT = Path(__file__).parents[2]
# Flags that a plan needs on a machine of two cores without an accelerator.
FLAGS = {
    "decoupled": ["--machine.num-cpu-devices", "2"],
    "multiple_learners": ["--machine.num-cpu-devices", "2", "--learner.num-devices", "2"],
    "central": ["--machine.num-cpu-devices", "2", "--learner.num-devices", "2"],
    "central, asynchronous": ["--learner.num-replicas", "2", "--learner.gradients", "asynchronous"],
    "device_only": ["--env.suite", "jax"],
    "dedicated_environments": ["--pool.num-workers", "1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", [*sorted(set(PLANS) - REPLAY_PLANS), "central, asynchronous"])
def test_ppo_solves_cartpole(tmp_path, plan):
    flags = FLAGS.get(plan, [])
    plan = plan.partition(",")[0]
    command = [sys.executable, str(ROOT / "experiments" / "ppo_cartpole.py"), "--plan", plan]
    places = ["--run.directory", str(tmp_path), "--run.name", "run"]
    done = subprocess.run(command + places + flags, capture_output=True, text=True, timeout=600, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert report["episodes"] == 100
    assert report["mean_return"] >= 475.0
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["name"] == plan
