"""Comparison of hide-and-seek's engines: means of infos over random episodes. Run: python docs/lab/hide_and_seek_engines.py.

Each layout is played in both engines with the same random actions, which change every `--hold` steps. With `--hold 1` the means
are those of the random policy, the baseline of phase signals.
"""

import argparse
import json
from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import Game
from envpool_bridge.envs.hide_and_seek.layout import Layout, draw_layout
from envpool_bridge.envs.hide_and_seek.spaces import ACTION_SIZES
from envpool_bridge.envs.suites.hide_and_seek import GAMES, PHASE_FIELDS, make_hide_and_seek, make_planar


def infos_of(env: Any, layouts: list[Layout], hold: int) -> np.ndarray:
    """Returns [E, F] infos of random episodes, which follow from the numbers of their layouts."""
    rows = []
    for number, layout in enumerate(layouts):
        env.reset(seed=number, options={"layout": layout})
        rng, names, step, result = np.random.default_rng(number), list(env.agents), 0, None
        actions = np.empty((len(names), 5), int)
        while env.agents:
            if step % hold == 0:
                actions = rng.integers(0, ACTION_SIZES, actions.shape)
            result, step = env.step(dict(zip(names, actions, strict=True))), step + 1
        assert result is not None
        rows.append([result[4][names[0]][field] for field in PHASE_FIELDS])
    return np.array(rows)


def compare(game: Game, episodes: int, hold: int) -> dict[str, tuple[float, float, float]]:
    """Returns the means in MuJoCo and in the planar engine, and the standard error of their difference, by info."""
    layouts = [draw_layout(game, np.random.default_rng(number)) for number in range(episodes)]
    mujoco, planar = (infos_of(make(game), layouts, hold) for make in (make_hide_and_seek, make_planar))
    error = np.sqrt((mujoco.var(axis=0) + planar.var(axis=0)) / episodes)
    columns = mujoco.mean(axis=0).tolist(), planar.mean(axis=0).tolist(), error.tolist()
    return dict(zip(PHASE_FIELDS, zip(*columns, strict=True), strict=True))


def agree(mujoco: float, planar: float, error: float) -> bool:
    """Returns whether means differ by at most 3 standard errors or 15 %."""
    return abs(mujoco - planar) <= max(3 * error, 0.15 * abs(mujoco))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", choices=GAMES, default="base")
    parser.add_argument("--kwargs", type=json.loads, default={}, help="JSON object with fields of the game")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--hold", type=int, default=1)
    options = parser.parse_args()
    for field, row in compare(GAMES[options.game](**options.kwargs), options.episodes, options.hold).items():
        print(f"| `{field}` | {row[0]:.4g} | {row[1]:.4g} | {row[2]:.2g} | {'yes' if agree(*row) else 'no'} |")  # noqa: T201
