"""The planar game of hide-and-seek inside a run: a run that is killed and resumed equals one that was not, to the bit."""

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("numba")

from envpool_bridge.envs.hide_and_seek.game import SIGNAL_NAMES
from experiments.mappo_hide_and_seek_1v1 import EXPERIMENT
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

ROWS, STEPS, UPDATES = 16, 26, 6  # 8 environments; an update ends within an episode of 60 steps


def train(directory, updates):
    """Trains the experiment in two workers, in small."""
    experiment = dataclasses.replace(EXPERIMENT, agent=dataclasses.replace(EXPERIMENT.agent, learning_rate=1e-2))
    agent, source, spec = experiment.build()
    config = run_config(
        name="run",
        directory=str(directory),
        plan="single_learner_coarse",
        num_envs=ROWS,
        pool_num_workers=2,
        rollout_length=STEPS,
        total_env_steps=ROWS * STEPS * updates,
        checkpoint_interval_updates=1,
    )
    return run(PLANS[config.plan](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_run_resumes_to_the_bit(tmp_path):
    whole = train(tmp_path / "whole", UPDATES)
    names = {f"episode/info/{name}_mean" for name in SIGNAL_NAMES}
    assert names <= whole.metrics.keys()
    program = f"from tests.integration.test_hide_and_seek import train; train({str(tmp_path / 'parts')!r}, 100_000)"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    checkpoints = tmp_path / "parts/run/checkpoints"
    while process.poll() is None and len(list(checkpoints.glob("*"))) < 2:
        time.sleep(0.01)
    process.kill()
    process.wait()
    resumed = train(tmp_path / "parts", UPDATES)
    for one, other in zip(
        jax.tree.leaves(jax.device_get(resumed.state)), jax.tree.leaves(jax.device_get(whole.state)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert resumed.metrics == whole.metrics
