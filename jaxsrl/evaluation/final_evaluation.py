"""Evaluation that a run ends with, in its eval.json."""

import json
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import read_json, write_json
from jaxsrl.config.run_config import RunConfig
from jaxsrl.evaluation.evaluate import EvaluationReport


def write_final_evaluation(path: Path, update: int, evaluation: EvaluationReport, config: RunConfig) -> None:
    """Writes the evaluation of the parameters after an update, with each of its episodes."""
    episodes = {"returns": evaluation.returns, "lengths": evaluation.lengths, **_settings(config)}
    write_json(path, {"update": update, **evaluation.to_json(), **episodes})


def read_same_evaluation(path: Path, update: int, config: RunConfig) -> EvaluationReport | None:
    """Returns the evaluation in a file if a run with this configuration would play the same one; otherwise None.

    Files of several agents, of older versions and of `jaxsrl evaluate` lack episodes: these are played again.
    """
    if config.checkpoint.partial_restore or not path.exists():
        return None
    try:
        saved: Any = read_json(path)
        wanted = {"update": update, "episodes": config.eval.final_episodes, "seed": config.seed, "greedy": True}
        if "agent_returns" in saved or any(saved.get(name) != value for name, value in wanted.items()):
            return None
        if {name: saved[name] for name in _settings(config)} != _settings(config):
            return None
        returns, lengths = tuple(saved["returns"]), tuple(saved["lengths"])
        return EvaluationReport(
            saved["env_id"], returns, lengths, saved["seed"], True, task_returns=saved.get("task_returns", {})
        )
    except (UserError, KeyError, TypeError, AttributeError):
        return None


def _settings(config: RunConfig) -> dict[str, Any]:
    """Returns the options that may change between two starts of a run, and change the episodes."""
    return {"env_kwargs": json.loads(config.eval.env_kwargs)}
