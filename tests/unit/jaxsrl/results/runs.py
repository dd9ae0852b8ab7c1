"""Finished run directories, and results, without training."""

import json

from jaxsrl.checkpoints.run_directory import write_json
from jaxsrl.results.record import Result

PROVENANCE = {
    "command": "jaxsrl train ppo --env.id Hopper-v5 --run.seed 1",
    "commit": "v1-2-gabc",
    "versions": {"jaxsrl": "0.2.0", "mujoco": "3.5"},
    "hardware": {"cpu": "A CPU", "cores": 2, "gpu": ""},
}


def save_finished_run(path, provenance=(PROVENANCE,), greedy=True, env_id="Hopper-v5", seed=1):
    path.mkdir(parents=True)
    run = {"seed": seed, "num_envs": 2, "rollout_length": 4, "total_env_steps": 80}
    config = {"agent_name": "ppo", "env_spec": {"env_id": env_id}, "experiment": {"run": run}}
    write_json(path / "config.json", config)
    write_json(path / "provenance.json", list(provenance))
    evaluation = {
        "update": 10,
        "mean_return": 100.00000001,
        "std_return": 2.5,
        "episodes": 20,
        "greedy": greedy,
        "checkpoint": str(path),
    }
    write_json(path / "eval.json", evaluation)
    with open(path / "metrics.jsonl", "w") as file:
        for update in range(1, 11):
            totals = {"episode/count": float(update), "episode/return_sum": float(update * (update + 1) / 2)}
            record = {"update": update, "env_steps": update * 8, "wall_seconds": update * 0.5, **totals}
            file.write(json.dumps(record) + "\n")
    (path / "log.txt").write_text("2026-01-01 00:00:00 complete at update 10, 80 env steps, 5.0 s\n")
    return path


def make(task="Hopper-v5", algorithm="ppo", preset="ppo", seed=0, returns=100.0):
    curve = {"env_steps": [40, 80], "return_mean": [1.0 + seed, 2.0 + seed]}
    evaluation = {"mean_return": returns, "std_return": 2.5, "episodes": 20}
    command = f"jaxsrl train {preset} --env.id {task} --run.seed {seed}"
    origin = {name: PROVENANCE[name] for name in ("commit", "versions", "hardware")}
    return Result(task, algorithm, preset, seed, command, 80, 90.0, evaluation=evaluation, curve=curve, **origin)
