"""The `jaxsrl` command: evaluate, plan, bench, doctor. Imports wait until they are needed, so that --help is quick."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxsrl.bench.command import BenchCommand, run_bench
from jaxsrl.runtime.launch import exit_on_user_error
from jaxsrl.show_result import show


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the parameters of a run or a checkpoint.

    Attributes:
        path: run directory (its newest good checkpoint is taken) or checkpoint directory.
        episodes: how many.
        json: print one JSON object instead of a table.
        stochastic: sample actions instead of taking the most likely one.
        seed: of environments and actions.
        max_rows: environments side by side.
        video: also record episodes into this file, *.mp4.
        video_episodes: how many; those that `--max-rows 1` plays first.
    """

    path: tyro.conf.Positional[Path]
    episodes: int = 100
    json: bool = False
    stochastic: bool = False
    seed: int = 0
    max_rows: int = 32
    video: Path | None = None
    video_episodes: int = 1


@dataclasses.dataclass(frozen=True)
class ShowPlan:
    """Show what an experiment would run where, and what flows between, without training. Further flags are the experiment's.

    Attributes:
        experiment: Python file with an `Experiment` dataclass and `main`, as those in experiments/.
        policy: distribution policy by name, or your own as file.py:function; the experiment's if empty.
        cores: processor cores to plan for; 0 for those of this machine.
        gpus: GPUs to plan for, as if there were so many; 0 for the devices of this machine.
        out: also draw it into this file, .svg or .png.
        json: print one JSON object instead of tables.
    """

    experiment: tyro.conf.Positional[Path]
    policy: str = ""
    cores: int = 0
    gpus: int = 0
    out: Path | None = None
    json: bool = False


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Check this installation and machine, and list what dead runs left behind.

    Attributes:
        runs: directory of runs to look into.
        clean: also remove what dead runs left; what is of a run that lives is never touched.
        json: print one JSON object instead of a table.
    """

    runs: Path = Path("runs")
    clean: bool = False
    json: bool = False


Command = (
    Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[ShowPlan, tyro.conf.subcommand("plan")]
    | Annotated[BenchCommand, tyro.conf.subcommand("bench")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; `arguments` default to the command line's."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command, flags = _parse(arguments)
    if isinstance(command, ShowPlan):
        _plan(command, flags)
        return
    if isinstance(command, Evaluate):
        _evaluate(command)
        return
    if isinstance(command, Doctor):
        sys.exit(_doctor(command))
    run_bench(command.what)


def _parse(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command, and the flags that belong to the experiment whose plan is shown."""
    settings: dict[str, Any] = {"prog": "jaxsrl", "description": __doc__}
    if arguments[:1] != ["plan"]:
        return tyro.cli(Command, args=arguments, **settings), []  # pyright: ignore
    command, flags = tyro.cli(Command, args=arguments, return_unknown_args=True, **settings)  # pyright: ignore
    return command, flags


def _plan(command: ShowPlan, flags: list[str]) -> None:
    from jaxsrl.plan_of_experiment import plan_experiment
    from jaxsrl.print_plan import print_plan

    if command.policy:
        flags = [*flags, "--policy", command.policy]
    planned = plan_experiment(command.experiment, flags, command.cores, command.gpus)
    if command.out is not None:
        from jaxsrl.dataflow.draw import draw_plan

        draw_plan(planned.plan, planned.sizes, command.out, planned.resources.platform)
    if command.json:
        print(json.dumps(planned.to_json()))  # noqa: T201
    else:
        print_plan(planned)


def _doctor(command: Doctor) -> int:
    """The exit status: 0 if all is well, 1 if something is not."""
    from jaxsrl.doctor.report import examine, print_report

    report = examine(command.runs, command.clean)
    if command.json:
        print(json.dumps(report.to_json()))  # noqa: T201
    else:
        print_report(report)
    return 0 if report.is_well else 1


def _evaluate(command: Evaluate) -> None:
    from agents.api import Mode
    from jaxsrl.checkpoint import DamagedCheckpointError
    from jaxsrl.evaluate import evaluate
    from jaxsrl.load import load_agent
    from jaxsrl.run_directory import write_json
    from jaxsrl.video import Video

    try:
        loaded = load_agent(command.path)
    except DamagedCheckpointError as error:
        print(f"error: damaged checkpoint {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    for problem in loaded.problems:
        print(f"warning: damaged checkpoint skipped: {problem}", file=sys.stderr)  # noqa: T201
    mode = Mode.SAMPLE if command.stochastic else Mode.GREEDY
    video = None if command.video is None else Video(loaded.source, command.video, command.video_episodes)
    report = evaluate(
        loaded.agent,
        loaded.params,
        loaded.source,
        episodes=command.episodes,
        seed=command.seed,
        mode=mode,
        max_rows=command.max_rows,
    )
    result = {"checkpoint": str(loaded.checkpoint), "update": loaded.update, **report.to_json()}
    if video is not None:
        video.record(loaded.agent, loaded.params, seed=command.seed, mode=mode)
        result["video"] = str(command.video)
    if loaded.run_directory is not None:
        write_json(loaded.run_directory / "eval.json", result)
    show(result, command.json, f"evaluation of {command.path}")


if __name__ == "__main__":
    main()
