"""Evaluation that a run ends with, in its eval.json."""

import hashlib
import json
from collections.abc import Set
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG, read_json, write_json
from jaxsrl.config.run_config import MAY_CHANGE, RunConfig
from jaxsrl.evaluation.evaluate import EvaluationReport


def write_final_evaluation(path: Path, update: int, evaluation: EvaluationReport, config: RunConfig) -> None:
    """Writes the evaluation of the parameters after an update, with each of its episodes."""
    episodes = {"returns": evaluation.returns, "lengths": evaluation.lengths, **_settings(path.parent, config)}
    write_json(path, {"update": update, **evaluation.to_json(), **episodes})


def read_same_evaluation(path: Path, update: int, config: RunConfig) -> EvaluationReport | None:
    """Returns the evaluation in a file if a run with this configuration would play the same one; otherwise None.

    Changed code is not noticed. Files of several agents, of older versions and of `jaxsrl evaluate` lack episodes: these are
    played again.
    """
    if config.checkpoint.partial_restore or not path.exists():
        return None
    try:
        saved: Any = read_json(path)
        wanted = {"update": update, "episodes": config.eval.final_episodes, "seed": config.seed, "greedy": True}
        if "agent_returns" in saved or any(saved.get(name) != value for name, value in wanted.items()):
            return None
        settings = _settings(path.parent, config)
        if {name: saved[name] for name in settings} != settings:
            return None
        returns, lengths = tuple(saved["returns"]), tuple(saved["lengths"])
        return EvaluationReport(
            saved["env_id"], returns, lengths, saved["seed"], True, task_returns=saved.get("task_returns", {})
        )
    except (UserError, KeyError, TypeError, AttributeError):
        return None


def _settings(directory: Path, config: RunConfig) -> dict[str, Any]:
    """Returns what may change between two starts of a run, and changes the episodes."""
    supervision = config.pool.supervision
    return {
        "env_kwargs": json.loads(config.eval.env_kwargs),
        "bad_env_output": supervision.bad_env_output if config.eval.processes else "raise",
        "configuration": _digest(directory),
    }


def _digest(directory: Path) -> str:
    """Returns a digest of all that only a partial restore may change: the agent and the environment, for example."""
    recorded = read_json(directory / CONFIG)
    fixed = {name: recorded.get(name) for name in ("agent_name", "env_spec")}
    experiment = _without(recorded.get("experiment"), MAY_CHANGE)
    return hashlib.sha256(json.dumps([fixed, experiment], sort_keys=True).encode()).hexdigest()


def _without(tree: Any, paths: Set[str], prefix: str = "") -> Any:
    """Returns JSON data without the entries at these dotted paths."""
    if not isinstance(tree, dict):
        return tree
    names: dict[str, Any] = tree
    return {
        name: _without(value, paths, f"{prefix}{name}.") for name, value in names.items() if prefix + name not in paths
    }
