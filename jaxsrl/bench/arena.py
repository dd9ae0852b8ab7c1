"""Benchmark of the arena: games per second of two policies, against episodes per second of one."""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

import jax

from agents.api import Mode
from jaxsrl.bench.turns import median_ratio, per_second, take_turns
from jaxsrl.evaluation.arena import MAX_ROWS, ArenaConfig, Contestant, play_arena
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.evaluation.load_agent import load_agent


def bench_arena(run: Path, games: int = 400, rounds: int = 4) -> dict[str, Any]:
    """Measures games per second of a policy against itself in the arena.

    Contenders take alternating turns: the arena, where two policies play a team each, and `jaxsrl evaluate`, where one policy
    plays both. Actions are sampled, so that both play games of the same lengths. Each turn compiles its program, as the
    commands do.

    Args:
        run: directory of a run of a game of two teams.
        games: Games of a turn, an even number.
        rounds: turns of each contender.
    """
    loaded = load_agent(run)
    config = ArenaConfig(games, mode=Mode.SAMPLE)
    contestants = [Contestant(name, loaded) for name in ("first", "second")]
    settings: dict[str, Any] = {"episodes": games, "mode": config.mode, "max_rows": MAX_ROWS}
    contenders = {
        "arena": partial(play_arena, contestants, config, lambda line: None),
        "evaluate": partial(evaluate, loaded.agent, loaded.params, loaded.source, **settings),
    }
    speeds = take_turns({name: partial(per_second, play, games) for name, play in contenders.items()}, rounds)
    return {
        "arena_games_per_second": statistics.median(speeds["arena"]),
        "evaluate_games_per_second": statistics.median(speeds["evaluate"]),
        "ratio": median_ratio(speeds["arena"], speeds["evaluate"]),
        "games": games,
        "rounds": rounds,
        "platform": jax.default_backend(),
    }
