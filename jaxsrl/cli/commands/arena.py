"""`jaxsrl arena`."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.terminal.progress import show_line
from jaxsrl.terminal.tables import print_tables


@dataclasses.dataclass(frozen=True)
class Arena:
    """Play games between all pairs of policies, and rate them.

    Attributes:
        paths: run directories, RUN@TAG, checkpoints; "random" for random legal actions.
        games: Games of each pair, half of them from each side.
        seed: Seed of environments and actions.
        stochastic: sample actions instead of taking the most likely ones.
        first_side: pattern of the names of the agents of one side; by default the first team of self-play.
        out: file for names, payoffs and ratings, *.json.
        plot: file for a heat map of the payoffs, .png, .svg or .pdf.
        stall_timeout_seconds: longest time between two steps, after which the command fails.
        trust_env: import the module that the id of the environment names ("module:Id"), which runs its code.
        json: print one JSON object instead of a table.
    """

    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    games: int = 100
    seed: int = 0
    stochastic: bool = False
    first_side: str = ""
    out: Path | None = None
    plot: Path | None = None
    stall_timeout_seconds: float = 1800.0
    trust_env: bool = False
    json: bool = False

    def run(self) -> int:
        """Plays all pairs, writes the files and prints the ratings."""
        from agents.api import Mode
        from jaxsrl.checkpoints.run_directory import write_json
        from jaxsrl.evaluation.arena import ArenaConfig, load_contestants, play_arena, rate
        from jaxsrl.evaluation.progress import step_deadline

        if self.out is not None and (self.out.is_dir() or not self.out.parent.is_dir()):
            raise UserError(f"expected a file in an existing directory: got {self.out}")
        if self.plot is not None:
            from jaxsrl.plots.style import validate_out

            validate_out(self.plot)
        mode = Mode.SAMPLE if self.stochastic else Mode.GREEDY
        config = ArenaConfig(self.games, self.seed, mode, self.first_side)

        with step_deadline(self.stall_timeout_seconds, option="--stall-timeout-seconds"):
            payoffs = play_arena(load_contestants(self.paths, self.trust_env), config, show_line)
        if self.out is not None:
            write_json(self.out, payoffs.to_json())
        if self.plot is not None:
            from jaxsrl.plots.draw_payoffs import draw_payoffs

            draw_payoffs(payoffs.names, payoffs.share, self.plot)
        if self.json:
            print(json.dumps(payoffs.to_json()))  # noqa: T201
        else:
            print_tables({"ratings": rate(payoffs)}, False, "ratings")
        return 0
