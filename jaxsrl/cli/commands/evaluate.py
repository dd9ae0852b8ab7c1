"""`jaxsrl evaluate`."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from envpool_bridge.envs.json_arguments import read_arguments
from envpool_bridge.errors import UserError
from jaxsrl.cli.unused_options import validate_unused
from jaxsrl.terminal.progress import show_line
from jaxsrl.terminal.tables import print_tables

if TYPE_CHECKING:
    from agents.api import Mode
    from envpool_bridge.spec.specs import EnvSpec
    from jaxsrl.evaluation.load_agent import LoadedAgent


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the parameters of a run or a checkpoint.

    Attributes:
        path: run directory (its newest good checkpoint is used) or checkpoint directory. Greedy episodes with the newest checkpoint
            of a run directory replace its eval.json; other episodes do not.
        episodes: number of episodes.
        json: print one JSON object instead of a table.
        stochastic: sample actions instead of taking the most likely one.
        seed: Seed of environments and actions.
        max_rows: number of concurrent environments; None for that of the run's evaluations.
        max_episode_steps: env steps after which an episode is cut, and counted as it is; None for that of the run's evaluations.
        seeds: seeds of the episodes in turn, each equally often; None for those of the run's evaluations, empty to draw them
            from `seed`.
        levels: number of levels, the seeds 0 to N - 1, to play instead.
        stall_timeout_seconds: longest time between two steps, after which the command fails.
        processes: worker processes that step them, for environments whose steps take long; 0 for this process. If the environments
            cannot be divided equally, fewer are started.
        video: also record episodes into this file, *.mp4. Agents with a world model add real and predicted observations,
            *_predicted.mp4 of images and *_predicted.png of numbers.
        partial: restore the arrays of a checkpoint that match the agent, and report the others.
        trust_env: import the modules that the checkpoint names, of its environment and its agent, which runs their code.
        video_episodes: number of recorded episodes; those that `--max-rows 1` plays first.
        all: evaluate every good checkpoint of the run, one row each, instead of the newest.
        opponent: Opponent of a board game of suite pgx: plays `episodes` games against "random", "uct:SIMULATIONS", or another
            run.
        agent_options: NAME=VALUE of options of the algorithm that replace those of the run, for example
            gumbel.num-simulations=200 of a search. They are not those of the opponent or of policies with an algorithm of
            their own. Then eval.json stays as it is.
        env_kwargs: NAME=VALUE of arguments of the environment that replace those of training, or a JSON object; by default those
            of the run's evaluations (--eval.env-kwargs). Others leave eval.json as it is.
        out: File that --all also draws them into as a curve, .png, .svg or .pdf.
    """

    path: tyro.conf.Positional[Path]
    episodes: int = 100
    json: bool = False
    stochastic: bool = False
    seed: int = 0
    max_rows: int | None = None
    max_episode_steps: int | None = None
    seeds: tuple[int, ...] | None = None
    levels: int = 0
    stall_timeout_seconds: float = 1800.0
    processes: int = 0
    video: Path | None = None
    video_episodes: int = 1
    partial: bool = False
    trust_env: bool = False
    all: bool = False
    out: Path | None = None
    opponent: str = ""
    agent_options: tuple[str, ...] = ()
    env_kwargs: tuple[str, ...] = ()

    def run(self) -> int:
        """Plays episodes."""
        from jaxsrl.evaluation.progress import step_deadline

        self._validate()
        with step_deadline(self.stall_timeout_seconds, option="--stall-timeout-seconds"):
            return self._run_all() if self.all else self._run_one()

    def _run_one(self) -> int:
        """Plays episodes with one checkpoint."""
        from jaxsrl.checkpoints.run_directory import write_json
        from jaxsrl.evaluation.evaluate import evaluate
        from jaxsrl.evaluation.load_agent import counted_agents, load_agent
        from jaxsrl.evaluation.worker_rows import in_workers

        loaded = load_agent(self.path, **self._loading())
        for problem in loaded.problems:
            show_line(f"warning: damaged checkpoint skipped: {problem}")
        if loaded.mismatches:
            show_line(f"warning: {loaded.mismatches}")
        if self.opponent:
            return self._run_games(loaded)
        record = None if self.video is None else self._recorder(loaded, self.video)
        agents = counted_agents(loaded.metadata)
        source = in_workers(loaded.source, self.processes)
        settings = self._settings(loaded.metadata, source.spec())
        report = evaluate(loaded.agent, loaded.params, source, **settings).of_agents(agents)
        result = {"checkpoint": str(loaded.checkpoint), "update": loaded.update, **report.to_json()}
        result |= _format_changes(loaded.env_kwargs)
        if record is not None:
            result |= record()
        print_tables(result if self.json else _named(result), self.json, f"evaluation of {self.path}")
        if self._is_of_run(loaded):
            try:
                write_json(self.path / "eval.json", result)
            except OSError as error:
                show_line(
                    f"warning: {self.path / 'eval.json'} cannot be written ({error.strerror}): it stays as it was"
                )
        return 0

    def _validate(self) -> None:
        """Rejects combinations of flags of which one would have no effect.

        Raises:
            UserError: If there is such a combination.
        """
        if self.video is None:
            validate_unused(self, ("video_episodes",), "no episode is recorded without --video FILE.mp4")
        if self.out is not None and not self.all:
            raise UserError("--out draws a curve over checkpoints: give --all too")
        for flag, is_given in (("--video shows", self.video is not None), ("--opponent plays", self.opponent != "")):
            if self.all and is_given:
                raise UserError(f"{flag} one checkpoint: omit --all, or give the checkpoint's directory")
        if self.opponent and self.video is not None:
            raise UserError(
                f"games against an opponent are not recorded: expected no --video, got {self.video}; omit one"
            )
        if self.processes < 0:
            raise UserError(f"--processes must be at least 0: got {self.processes}")
        if self.opponent and self.processes:
            raise UserError(f"games against an opponent are played in this process: omit --processes {self.processes}")
        if self.opponent:
            validate_unused(self, ("max_rows",), "all games of a seat are played at once")
        if self.opponent and self.env_kwargs:
            raise UserError(
                f"games against an opponent are played by their rules: omit --env-kwargs {' '.join(self.env_kwargs)}"
            )

    def _is_of_run(self, loaded: "LoadedAgent") -> bool:
        """Returns whether the episodes are those that a run ends with: greedy, with its newest checkpoint as it is."""
        is_newest = loaded.run_directory == self.path and not loaded.problems
        others = (self.max_rows, self.max_episode_steps, self.levels or None, self.seeds)
        changed = self.stochastic or self.agent_options or self.env_kwargs or loaded.mismatches
        return is_newest and not changed and others == (None,) * len(others)

    def _recorder(self, loaded: "LoadedAgent", path: Path) -> Callable[[], dict[str, Any]]:
        """Returns a function that records episodes, and predictions of agents that offer them; it returns the files.

        Raises:
            UserError: nothing can be recorded.
        """
        from jaxsrl.evaluation.predictions.draw import record_predictions
        from jaxsrl.evaluation.predictions.open_loop import can_predict, predict_open_loop
        from jaxsrl.evaluation.video import Video
        from jaxsrl.evaluation.video_file import validate_video_path

        validate_video_path(path)
        predicts, video, mode = can_predict(loaded.agent), None, self._mode()
        try:
            video = Video(loaded.source, path, self.video_episodes)
        except UserError as error:
            if not predicts or self.video_episodes < 1:
                raise
            show_line(f"warning: only predictions are recorded: {error}")

        def record() -> dict[str, Any]:
            files: dict[str, Any] = {}
            if video is not None:
                video.record(loaded.agent, loaded.params, seed=self.seed, mode=mode)
                files["video"] = str(path)
            if predicts:
                played = {"episodes": self.video_episodes, "seed": self.seed, "mode": mode}
                open_loop = predict_open_loop(loaded.agent, loaded.params, loaded.extra, loaded.source, **played)
                files["predictions"] = record_predictions(open_loop, path)
            return files

        return record

    def _run_games(self, loaded: "LoadedAgent") -> int:
        """Plays games against the opponent."""
        from jaxsrl.evaluation.games import evaluate_against

        results = evaluate_against(loaded, self.opponent, self.episodes, self.seed, self._mode())
        rows = [dataclasses.asdict(result) for result in results]
        print_tables({"seats": rows, "opponent": self.opponent}, self.json, f"games of {self.path}")
        return 0

    def _mode(self) -> "Mode":
        from agents.api import Mode

        return Mode.SAMPLE if self.stochastic else Mode.GREEDY

    def _settings(self, metadata: Mapping[str, Any], spec: "EnvSpec") -> dict[str, Any]:
        """Returns the arguments of `evaluate` for a checkpoint; says which limit cuts episodes."""
        from jaxsrl.evaluation.evaluate import MAX_ROWS, EpisodeOptions, describe_limit
        from jaxsrl.evaluation.load_agent import saved_options
        from jaxsrl.evaluation.progress import ProgressLines
        from jaxsrl.evaluation.while_training import named_seeds

        if self.levels and self.seeds:
            raise UserError(f"--levels {self.levels} are the seeds 0 to {self.levels - 1}: omit it, or --seeds")
        run = saved_options(metadata)
        rows, seeds = MAX_ROWS, self.seeds
        if run is not None:
            rows = min(run.num_envs, run.eval.max_rows)
            seeds = named_seeds(run.eval) if seeds is None else seeds
        seeds = tuple(range(self.levels)) or seeds or ()
        limit = self.max_episode_steps or (run.eval.max_episode_steps if run is not None else None)
        if line := describe_limit(spec, limit, "--max-episode-steps"):
            show_line(line)
        options = EpisodeOptions(limit, seeds, on_step=ProgressLines(self.episodes, show_line))
        arguments = {"episodes": self.episodes, "seed": self.seed, "mode": self._mode(), "options": options}
        return {**arguments, "max_rows": rows if self.max_rows is None else self.max_rows}

    def _loading(self) -> dict[str, Any]:
        """Returns the arguments of `load_agent`."""
        options = read_arguments(self.agent_options, "--agent-options")
        kwargs = None  # those of the run
        if self.opponent or self.env_kwargs:  # games are played by their rules
            kwargs = read_arguments(self.env_kwargs, "--env-kwargs")
        settings = {"agent_options": options, "env_kwargs": kwargs}
        return {"partial": self.partial, "trust_env": self.trust_env, **settings}

    def _run_all(self) -> int:
        """Plays episodes with every checkpoint."""
        from jaxsrl.evaluation.all_checkpoints import evaluate_checkpoints
        from jaxsrl.evaluation.load_agent import load_agent
        from jaxsrl.evaluation.plot import draw_evaluations
        from jaxsrl.plots.style import validate_out

        if self.out is not None:
            validate_out(self.out)
        reports = []
        load, processes = partial(load_agent, **self._loading()), self.processes
        for report in evaluate_checkpoints(self.path, load, self._settings, processes=processes):
            if isinstance(report, str):
                show_line(f"warning: {report}")
            else:
                reports.append(report)
        if not reports:
            raise UserError(f"no checkpoint of {self.path} could be evaluated: see the warnings")
        if self.out is not None:
            draw_evaluations(reports, self.out)
        columns = ("update", "env_steps_trained", "mean_return", "mean_return_low", "mean_return_high", "std_return")
        rows = [report.to_json() for report in reports]
        shown = rows if self.json else [_named({name: row[name] for name in columns}) for row in rows]
        changes = _format_changes(reports[0].env_kwargs)
        print_tables({**changes, "checkpoints": shown}, self.json, f"evaluation of {self.path}")
        return 0


def _named(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result with the name that its mean has in tables of runs."""
    return {name.replace("mean_return", "evaluation_return"): value for name, value in result.items()}


def _format_changes(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the environments that replace those of training as JSON data; {} if there are none."""
    return {"env_kwargs": dict(env_kwargs)} if env_kwargs else {}
