"""The same command gives the same parameters, also interrupted and continued."""

import os
import signal

import pytest

from jaxsrl.evaluation.load_agent import load_agent
from tests.gpu.conftest import DRY
from tests.gpu.made_slots import same
from tests.gpu.train_command import command, ends, running, small, start, wait_for_checkpoint

pytestmark = pytest.mark.gpu
EXACT = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"


def params_of(directory):
    return load_agent(directory / "run").params


@pytest.mark.seconds(110)
@pytest.mark.parametrize("flags", [EXACT, ""], ids=["deterministic", "default"])
def test_the_same_command_twice_and_interrupted(flags, row, size, tmp_path):
    own = f"{os.environ.get('XLA_FLAGS', '')} {flags if not DRY else ''}".strip()
    updates, found = size(60, 6), {}
    for name in ("once", "twice", "interrupted"):
        where = tmp_path / name
        every = ("--checkpoint.interval-updates", "2")
        if name == "interrupted":
            endless = command("ppo_cartpole", where, *small(updates, *every))
            with running(start(endless, XLA_FLAGS=own)) as (process,):
                wait_for_checkpoint(where, process)
                process.send_signal(signal.SIGINT)
                process.wait(60)
        status, output = ends(command("ppo_cartpole", where, *small(updates, *every)), XLA_FLAGS=own)
        assert status == 0, output[-1000:]
        found[name] = params_of(where)
    results = [
        f"{name}: {'equal' if same(found['once'], found[name]) else 'different'}" for name in ("twice", "interrupted")
    ]
    row(f"ppo_cartpole, {updates} updates, {flags or 'XLA as it is'}", ", ".join(results))
    if flags:
        assert results == ["twice: equal", "interrupted: equal"]
