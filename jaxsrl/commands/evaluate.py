"""`jaxsrl evaluate`."""

import dataclasses
import sys
from pathlib import Path

import tyro

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

    def run(self) -> int:
        """Plays; the exit status is 1 if the one checkpoint asked for is damaged."""
        from agents.api import Mode
        from jaxsrl.checkpoint import DamagedCheckpointError
        from jaxsrl.evaluate import evaluate
        from jaxsrl.load import load_agent
        from jaxsrl.run_directory import write_json
        from jaxsrl.video import Video

        try:
            loaded = load_agent(self.path)
        except DamagedCheckpointError as error:
            print(f"error: damaged checkpoint {error}", file=sys.stderr)  # noqa: T201
            return 1
        for problem in loaded.problems:
            print(f"warning: damaged checkpoint skipped: {problem}", file=sys.stderr)  # noqa: T201
        mode = Mode.SAMPLE if self.stochastic else Mode.GREEDY
        video = None if self.video is None else Video(loaded.source, self.video, self.video_episodes)
        report = evaluate(
            loaded.agent,
            loaded.params,
            loaded.source,
            episodes=self.episodes,
            seed=self.seed,
            mode=mode,
            max_rows=self.max_rows,
        )
        result = {"checkpoint": str(loaded.checkpoint), "update": loaded.update, **report.to_json()}
        if video is not None:
            video.record(loaded.agent, loaded.params, seed=self.seed, mode=mode)
            result["video"] = str(self.video)
        if loaded.run_directory is not None:
            write_json(loaded.run_directory / "eval.json", result)
        show(result, self.json, f"evaluation of {self.path}")
        return 0
