"""Run directories as training leaves them, with records that a test chooses."""

import json

import pytest


@pytest.fixture
def make_run(tmp_path):
    def make(name, returns, *, env="CartPole-v1", agent="ppo", seed=0, learning_rate=1e-3, steps=100, **run):
        """A run with a record of each of `returns`, `steps` env steps and one second apart; `run` is of its RunConfig."""
        path = tmp_path / name
        path.mkdir(parents=True)
        experiment = {
            "env": {"id": env, "frame_stack": run.pop("frame_stack", 1)},
            "agent": {"learning_rate": learning_rate, "hidden_sizes": [64, 64]},
            "run": {
                "seed": seed,
                "name": name,
                "plan": "serial",
                "total_env_steps": 1000,
                "metrics": {"interval_seconds": seed},
                **run,
            },
        }
        config = {"agent_name": agent, "experiment": experiment, "env_spec": {"env_id": env}}
        (path / "config.json").write_text(json.dumps(config))
        with open(path / "metrics.jsonl", "w") as file:
            for update, value in enumerate(returns, 1):
                fixed = {
                    "update": update,
                    "env_steps": update * steps,
                    "frames": update * steps * 4,
                    "wall_seconds": update * 1.0,
                }
                file.write(json.dumps({**fixed, "episode/return_mean": value}) + "\n")
        return path

    return make
