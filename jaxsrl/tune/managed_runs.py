"""Common parts of the managers of runs: their lock, their state file, and the options and commands of their runs."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from agents.networks.config import NetworkConfig
from agents.transforms.self_play import SelfPlayConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import lock_directory, read_json
from jaxsrl.config.files import flag_name, option_name
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import Experiment, load_experiment
from jaxsrl.machine.python_command import jaxsrl_command
from jaxsrl.machine.resources import Resources
from jaxsrl.machine.run_tasks import Task
from jaxsrl.plan.load_plan import make_plan
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.run_plan import make_callbacks
from jaxsrl.training.dataset_replay import check_dataset, open_for_agent
from jaxsrl.training.stop_rules import with_gradient_budget

Train = Callable[[Sequence[Task]], int]
"""Runs the tasks; returns an exit status, not 0 if it was stopped."""

OWNED_PLACE = {"run.name": "use --directory", "run.directory": "use --directory"}
OWNED = {**OWNED_PLACE, "run.total_env_steps": "use --env-steps", "run.seed": "use --seed"}
OWNED_IN_ROUNDS = {**OWNED, "run.init_from": "remove it, since a run starts from one of the round before"}
"""Options that a manager sets for each of its runs, and what to do in place of that."""


def hold(directory: Path) -> TextIO:
    """Makes the directory of a manager if need be, and locks it until the result is closed.

    Raises:
        UserError: another process holds it, or it cannot be written.
    """
    return lock_directory(directory, "directory", "another --directory", "--directory")


def open_state(path: Path, settings: Mapping[str, Any], initial: Mapping[str, Any], may_grow: str) -> dict[str, Any]:
    """Returns the state in a file, or the initial one where there is none, with the settings.

    Args:
        path: Path of the file; its directory is made if need be.
        settings: Settings of this call, as JSON data.
        initial: state without any run.
        may_grow: name of the setting that may change; "" for none.

    Raises:
        UserError: If the file has other settings.
    """
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {"settings": dict(settings), **initial}
    state = read_json(path)
    changed = {name for name in settings if state["settings"].get(name) != settings[name]} - {may_grow}
    if changed:
        raise UserError(f"{path} has other settings ({', '.join(sorted(changed))}): choose another --directory")
    return {**state, "settings": dict(settings)}


def train_task(directory: Path, name: str, experiment: str, env_steps: int, seed: int, flags: Sequence[str]) -> Task:
    """Returns the command that trains one run of a directory; the last of several equal flags counts."""
    own = ["--run.directory", str(directory), "--run.name", name]
    own += ["--run.total-env-steps", str(env_steps), "--run.seed", str(seed)]
    return Task(name, jaxsrl_command("train", experiment, *flags, *own), directory / f"{name}.txt")


def validate_flags(owned: Mapping[str, str], flags: Sequence[str], space: Iterable[str] = ()) -> None:
    """Rejects options of the experiment that the manager replaces for each run.

    Args:
        owned: these options, and what to do in place of giving them.
        flags: Flags of the experiment.
        space: names of options that differ between runs.

    Raises:
        UserError: If a flag or the space names one of them.
    """
    given = {option_name(flag.partition("=")[0]) for flag in flags if flag.startswith("--")} | {*space}
    for name in owned:
        if name in given:
            flag = flag_name(name).replace("_", "-")
            raise UserError(f"expected no --{flag}, which this command sets for each run: {owned[name]}")


def validate_single(run: RunConfig, kind: str, space: Iterable[str] = ()) -> None:
    """Rejects a configuration whose runs train several seeds, or record into one dataset.

    Args:
        run: configuration of all runs.
        kind: what one of them is called.
        space: names of options that differ between runs.

    Raises:
        UserError: If it has several seeds or a dataset to record, or these differ between runs.
    """
    if run.seeds > 1:
        raise UserError(f"a {kind} is one run: expected --run.seeds 1, got {run.seeds}")
    if run.record:
        raise UserError(
            f"the dataset of --run.record is of one run, not of each {kind}: expected none, got {run.record}"
        )
    if shared := sorted({"run.seeds", "run.record"} & {*space}):
        raise UserError(f"a {kind} is one run without a dataset: expected a space without {', '.join(shared)}")


def validate_games(games: int) -> None:
    """Raises UserError unless the number of games of a pair is positive and even."""
    if games < 2 or games % 2:
        raise UserError(f"half of the games of a pair are from each side: expected an even number, got {games}")


def validate_start(made: Experiment) -> None:
    """Makes the agent and opens the dataset of a run, so that what no run can start with is rejected before the first one.

    Starts nothing. Only plan `offline` is made: others depend on the machine of a run, and its devices belong to the runs.

    Args:
        made: experiment of a run.

    Raises:
        UserError: training would raise one too.
        CorruptDatasetError: If a file of the dataset is missing.
    """
    agent, source, spec = made.build()
    config = with_gradient_budget(made.run, agent)
    make_callbacks(config, agent, source, made.env)
    if config.is_offline:
        plan = make_plan(config, Resources(num_cores=1, platform="cpu", num_devices=1))  # of any machine
        plan = add_agent_fragments(plan, agent, config.replay)
        check_dataset(config, plan, agent, spec)
    elif config.dataset.path:
        open_for_agent(Path(config.dataset.path), agent, spec)


def opponent_flags(members: Sequence[Path], mixture: Sequence[float], slots: int, self_share: float = 0.0) -> list[str]:
    """Returns the flags of a run that plays against a fixed mixture of policies of other runs.

    Args:
        members: directories of their runs.
        mixture: weight of each.
        slots: opponents that act at the same time.
        self_share: share of the environments in which the learner plays itself.
    """
    pool = {
        "slots": [str(slots)],
        "self-share": [repr(float(self_share))],
        "snapshot-every": ["0"],
        "reslot-every": ["1"],
        "library-size": [str(len(members))],
        "opponents": ["mixture"],
        "members": [str(member) for member in members],
        "mixture": [repr(float(weight)) for weight in mixture],
    }
    return [word for option, values in pool.items() for word in (f"--policies.self-play.{option}", *values)]


def validate_opponents(experiment: Path, flags: Sequence[str], slots: int, self_share: float = 0.0) -> None:
    """Makes the agent of a run against opponents, so that one that cannot play them is rejected before the first run starts.

    Args:
        experiment: path of its file.
        flags: Flags of the experiment.
        slots: opponents that act at the same time.
        self_share: largest share of the environments in which the learner plays itself.

    Raises:
        UserError: If there are too few environments, the game has no two teams, or the algorithm cannot play opponents.
        UserError: If the agent is made in code, so that none of a run can be loaded for games, or that is not one run.
        UserError: If a flag is one of those of `opponent_flags`.
    """
    pool_flags = [word for word in opponent_flags((), (), slots) if word.startswith("--")]
    validate_flags(dict.fromkeys(map(option_name, pool_flags), "use --slots"), flags)
    made = load_experiment(experiment, flags)
    if made.make_agent is not None or not isinstance(made.network, NetworkConfig):
        raise UserError(
            f"games load the policies of runs, which needs an algorithm of jaxsrl and a NetworkConfig: got an agent that "
            f"{experiment} makes in code"
        )
    validate_single(made.run, "policy")
    pool = SelfPlayConfig(slots=slots, self_share=self_share, team=made.policies.self_play.team)
    try:
        dataclasses.replace(made, policies=dataclasses.replace(made.policies, self_play=pool)).build()
    except UserError as error:
        raise UserError(f"later runs play {slots} opponents at a time (--slots): {error}") from error
