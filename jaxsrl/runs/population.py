"""Populations of runs, read from the files of their managers: PBT, PSRO, leagues. No jax."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import read_json
from jaxsrl.runs.summary import iterate_runs, run_name

FILES = {"population.json": "pbt", "psro.json": "psro", "league.json": "league"}
"""State files of managers, and the kinds of their populations."""


def find_populations(root: Path) -> dict[str, Path]:
    """Returns the directories of populations whose runs are below a directory, or the directory itself, by name."""
    # If the root is itself a run, its parent is outside.
    parents = {root, *(run.parent for run in iterate_runs(root) if run != root)}
    directories = sorted(path for path in parents if any((path / file).is_file() for file in FILES))
    return {run_name(path, root): path for path in directories}


def read_population(directory: Path) -> dict[str, Any]:
    """Returns what is known of a population, as JSON data.

    Keys: "kind" of `FILES`. "runs": of each, "name", "round", "player" (a line of the family tree), "parent" (the run whose
    parameters it started with, or None), "score" and "options". "score": name of the scores. "payoffs": [P][P] of row against
    column for the runs in this order, empty for "pbt"; "payoff": their name. "ratings" and "errors": [P], empty if there are none.

    Raises:
        UserError: If there is no state file, or it is damaged or of another version.
    """
    file = next((file for file in FILES if (directory / file).is_file()), "population.json")
    state, kind = read_json(directory / file), FILES[file]
    empty = {"kind": kind, "payoffs": [], "payoff": "", "ratings": [], "errors": []}
    try:
        return empty | {"pbt": _pbt, "psro": _psro, "league": _league}[kind](state)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{directory / file} is damaged or of another version of jaxsrl: expected the state of a population, "
            f"got {type(error).__name__}: {error}; use the version that wrote it"
        ) from error


def _pbt(state: Mapping[str, Any]) -> dict[str, Any]:
    runs = [
        {
            "name": f"round{number:03d}_member{member:02d}",
            "round": number,
            "player": f"member{member:02d}",
            "parent": None if number == 0 else f"round{number - 1:03d}_member{entry['source']:02d}",
            "score": entry["score"] if math.isfinite(entry["score"]) else None,
            "options": dict(entry["values"]),
        }
        for number, entries in enumerate(state["history"])
        for member, entry in enumerate(entries)
    ]
    return {"runs": runs, "score": "mean return"}


def _psro(state: Mapping[str, Any]) -> dict[str, Any]:
    weights = state["mixtures"][-1] if state["mixtures"] else []
    runs = [
        {"name": f"policy{n:03d}", "round": n, "player": "policy", "parent": None, "score": weight, "options": {}}
        for n, weight in enumerate(weights)
    ]
    score = "weight in the newest mixture"
    return {"runs": runs, "score": score, "payoffs": state["payoffs"], "payoff": "mean return"}


def _league(state: Mapping[str, Any]) -> dict[str, Any]:
    runs = [
        {
            "name": policy["name"],
            "round": policy["round"],
            "player": policy["player"],
            "parent": policy["source"],
            "score": rating,
            "options": {},
        }
        for policy, rating in zip(state["policies"], state["ratings"], strict=True)
    ]
    games = {"payoffs": state["points"], "payoff": "points per game"}
    return {"runs": runs, "score": "rating", **games, "ratings": state["ratings"], "errors": state["errors"]}
