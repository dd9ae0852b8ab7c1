"""Names of runs: the experiment, and the options that differ from its own."""

import dataclasses
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.api import AnyAgent
from envpool_bridge.envs.function_name import script_name
from jaxsrl.config.files import ConfigFile
from jaxsrl.config.run_config import MAY_CHANGE, RunConfig
from jaxsrl.config.serialization import changed_options, to_json, with_new_options

LONGEST = 80
"""Characters of a name, beyond which a hash replaces the rest; the seed follows."""
_WORDLESS = frozenset({"env.id", "env.suite"})
_LAST = ("", "agent.learning_rate", "agent.entropy_coef")
"""Options that may differ by seed; `member_configs` appends them to a name."""


def run_name(base: Iterable[str], changes: Iterable[str], seed: int | None) -> str:
    """Returns the name of a run directory.

    Args:
        base: Names of the experiment, such as those of the algorithm and of the environment.
        changes: Options that differ, from `describe_changes`.
        seed: Seed of the run; None without one in the name.

    Examples:
        >>> run_name(["ppo", "my_envs:Grid-v0"], ["learning_rate=0.001"], 3)
        'ppo_my_envs-Grid-v0_learning_rate=0.001_seed3'
    """
    name = "_".join(_plain(part) for part in (*base, *changes))
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name if seed is None else f"{name}_seed{seed}"


def describe_changes(default: Any, value: Any, unnamed: Iterable[str] = ()) -> list[str]:
    """Returns "option=value" for each option that differs and that a resumed run may not change.

    Args:
        default: JSON data of an experiment.
        value: JSON data of the experiment that is trained.
        unnamed: Options that do not count.

    Examples:
        >>> describe_changes({"agent": {"discount": 0.99}}, {"agent": {"discount": 0.9}})
        ['discount=0.9']
    """
    skipped = MAY_CHANGE | {*unnamed}
    changes = {path: new for path, _, new in changed_options(default, value) if path not in skipped}
    names = [path.partition(".")[2] for path in changes]
    described: list[str] = []
    for path in sorted(changes, key=lambda path: (_LAST.index(path) if path in _LAST else 0, path)):
        name = path.partition(".")[2]
        key = "" if path in _WORDLESS else f"{name if names.count(name) == 1 else path}="
        described.append(f"{key}{_plain(_describe(changes[path]))}")
    return described


def with_run_name(experiment: Any, default: Any, base: Sequence[str]) -> Any:
    """Returns an experiment whose run has the name of the base and of the options that differ from the default experiment's.

    With several seeds, `member_configs` appends each seed to the name.
    """
    changes = describe_changes(to_json(default), to_json(experiment), unnamed=("run.seed",))
    name = run_name(base, changes, experiment.run.seed if experiment.run.seeds == 1 else None)
    return dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, name=name))


def with_name_again(experiment: Any, saved: Any, file: ConfigFile) -> Any:
    """Returns the experiment of a run's configuration file with another name than that of the run, and prints it.

    Args:
        experiment: Experiment that is trained.
        saved: Experiment that the file describes.
        file: File of the run.
    """
    old = "" if file.run_directory is None else file.run_directory.name
    name = run_name([f"{old}_again"], describe_changes(to_json(saved), to_json(experiment)), None)
    shown = f"options of {file.path}; trains as {name} (--run.name changes it; --run.name {old} resumes)"
    print(shown, file=sys.stderr)  # noqa: T201
    return dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, name=name))


def python_run_name(experiment: Any, config: RunConfig, agent: AnyAgent, env_id: str) -> str:
    """Returns the name of a run that no command line names: script, algorithm, environment, and options that are not the defaults.

    Args:
        experiment: Experiment of the run; None for what the agent was made from.
        config: Configuration of the run.
        agent: Agent of the run.
        env_id: Name of the environment.
    """
    bound = {} if agent.binding is None else {"agent": agent.binding.config, "network": agent.binding.network}
    values = {**(bound if experiment is None else vars(experiment)), "run": config}
    parts = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    default = {name: with_new_options({}, value) for name, value in parts.items()}
    changes = describe_changes(default, to_json(parts), unnamed=("env.id", "run.seed"))
    return run_name([*filter(None, [script_name()]), agent.name, env_id], changes, config.seed)


def _describe(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "-".join(map(_describe, value))
    if isinstance(value, Mapping):
        return "-".join(f"{name}-{_describe(item)}" for name, item in value.items())
    return str(value)


def _plain(text: str) -> str:
    """Returns a text without characters that have a meaning in shells, URLs or the names of other machines' files."""
    return re.sub(r"-?[^A-Za-z0-9.+=_-]+-?", "-", text).strip("-" if text[:1] != "-" else "")
