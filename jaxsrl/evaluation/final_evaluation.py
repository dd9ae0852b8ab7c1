"""Evaluation that a run ends with, in its eval.json."""

import hashlib
import json
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from agents.api import AnyAgent
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG, LOG, append_line, read_json, write_json
from jaxsrl.config.run_config import MAY_CHANGE, RunConfig
from jaxsrl.evaluation.evaluate import EpisodeOptions, EvaluationReport, evaluate
from jaxsrl.evaluation.progress import ProgressLines, step_deadline
from jaxsrl.evaluation.while_training import named_seeds, rows_of_evaluation
from jaxsrl.evaluation.worker_rows import in_workers
from jaxsrl.terminal.format import format_number
from jaxsrl.training.setup import RunReport


def evaluate_final(
    done: RunReport, agent: AnyAgent, config: RunConfig, source: EnvSource, show: Callable[[str], None]
) -> EvaluationReport:
    """Plays greedy episodes with the final parameters of a run; ends the process if no step is made for too long.

    Those of a run that was complete are read from its eval.json.

    Args:
        done: report of the run.
        agent: agent of the run.
        config: configuration of the run.
        source: environments of the evaluation.
        show: receives lines of progress.

    Raises:
        UserError: see `evaluate`.
        EnvPoolError: If an environment failed.
    """
    path, update = done.directory / "eval.json", done.num_updates
    evaluation = None if done.seconds else read_same_evaluation(path, update, config)
    if evaluation is not None:
        return evaluation
    path.unlink(missing_ok=True)  # of other parameters, which a killed evaluation would leave here
    choice, episodes = config.eval, config.eval.final_episodes
    options = EpisodeOptions(choice.max_episode_steps, named_seeds(choice), on_step=ProgressLines(episodes, show))
    source = in_workers(source, choice.processes, config.pool.supervision)
    settings: dict[str, Any] = {"episodes": episodes, "seed": config.seed, "max_rows": rows_of_evaluation(config)}
    with step_deadline(config.stall_timeout_seconds, lambda line: append_line(done.directory / LOG, line)):
        evaluation = evaluate(agent, done.state.params, source, options=options, **settings)
    evaluation = evaluation.of_agents(choice.agents)
    write_final_evaluation(path, update, evaluation, config)
    return evaluation


def format_returns(evaluation: EvaluationReport) -> str:
    """Describes the result of a run: the return of its final evaluation."""
    returns = f"evaluation return {format_number(evaluation.mean_return)} (std {format_number(evaluation.std_return)})"
    cut = (
        f"; {evaluation.cut_episodes} cut after {max(evaluation.lengths):,} env steps"
        if evaluation.cut_episodes
        else ""
    )
    repaired = f"; {describe_repairs(evaluation.repaired_outputs)}" if evaluation.repaired_outputs else ""
    return f"evaluated {len(evaluation.returns)} greedy episodes: {returns}{cut}{repaired}"


def describe_repairs(outputs: int) -> str:
    """Returns the line of a run that repaired outputs."""
    return f"{outputs:,} outputs of environments were not as declared, and were repaired (strict is false)"


def write_final_evaluation(path: Path, update: int, evaluation: EvaluationReport, config: RunConfig) -> None:
    """Writes the evaluation of the parameters after an update, with each of its episodes."""
    episodes = {"returns": evaluation.returns, "lengths": evaluation.lengths, **_settings(path.parent, config)}
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
        settings = _settings(path.parent, config)
        if {name: saved[name] for name in settings} != settings:
            return None
        returns, lengths = tuple(saved["returns"]), tuple(saved["lengths"])
        return EvaluationReport(
            saved["env_id"],
            returns,
            lengths,
            saved["seed"],
            True,
            task_returns=saved.get("task_returns", {}),
            info_means=saved.get("info_means", {}),
            cut_episodes=saved.get("cut_episodes", 0),
            seeds=tuple(saved.get("seeds", ())),
            repaired_outputs=saved.get("repaired_outputs", 0),
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
        "rows": rows_of_evaluation(config),
        "limit": [config.eval.max_episode_steps, list(named_seeds(config.eval)), config.eval.stage],
    }


def _digest(directory: Path) -> str:
    """Returns a digest of all that only a partial restore may change: the agent and the environment, for example."""
    recorded = read_json(directory / CONFIG)
    fixed = {name: recorded.get(name) for name in ("agent_name", "env_spec", "code")}
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
