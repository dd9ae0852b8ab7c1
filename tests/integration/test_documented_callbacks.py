"""The callbacks of docs/how_to/callbacks.md run as they stand there."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

from experiments import ppo_cartpole
from jaxsrl.models.store import ModelStore
from tests.support.run_configs import change_run

PAGE = Path(__file__).parents[2] / "docs/how_to/callbacks.md"


def test_documented_callbacks_stop_save_and_write(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    run = change_run(
        ppo_cartpole.EXPERIMENT.run,
        directory=str(tmp_path),
        name="run",
        plan="serial",
        num_envs=16,
        eval_final_episodes=0,
    )
    monkeypatch.setattr(ppo_cartpole, "EXPERIMENT", dataclasses.replace(ppo_cartpole.EXPERIMENT, run=run))
    names = {}
    exec("\n".join(blocks).replace("StopAt(100.0)", "StopAt(20.0)"), names)
    directory = tmp_path / "run"
    assert "stopped: mean return 20.0 reached" in (directory / "log.txt").read_text()
    lines = [line.split(",") for line in (directory / "episodes.csv").read_text().splitlines()]
    record = ModelStore(directory / "models").find("record")
    assert record.metadata["return"] == max(float(line[1]) for line in lines)
    for place, best in {directory: record.metadata["return"], tmp_path / "new": float("-inf")}.items():
        resumed = names["KeepRecords"]()
        resumed.on_start(SimpleNamespace(directory=place))
        assert resumed.best == best
