"""Warm starts: a new run begins with arrays that another run has learned."""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import CorruptCheckpointError
from jaxsrl.checkpoints.names import LEARNER
from jaxsrl.checkpoints.partial_restore import MOST_SHOWN, array_form, list_some
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.config.run_config import RunConfig
from jaxsrl.runs.read_checkpoint import read_saved_run

_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")
_LEARNER = {"params/learner/": "params/", "extra/agent/": "extra/"}
"""Prefixes of the learner of a run with a pool of past selves, and without one."""
_POOL = ("params/slots/", "params/members", "extra/library/")
_GAMES = "extra/games/"


def warm_start(
    config: RunConfig, fresh: Arrays, policies: Collection[str], has_members: bool = False
) -> tuple[Arrays, str]:
    """Returns the arrays of a fresh learner state with those of another run in place of them, and a report.

    The number of updates stays 0. Arrays are compared by path, shape and dtype. An array of one of several policies also fits
    that of a run with a single policy. The learner of a run with a pool of past selves fits that of a run without one.

    Args:
        config: names the other run, the paths to take, and whether to take the optimizer's state.
        fresh: learner state by name.
        policies: names of the policies of the new run; empty if one acts for all agents.
        has_members: whether the new run names the members of its pool of past selves, which it keeps.

    Raises:
        UserError: there is no such run, or nothing of it fits.
    """
    try:
        saved = read_saved_run(Path(config.init_from))
    except CorruptCheckpointError as error:
        raise UserError(f"run.init_from: damaged checkpoint {error}") from error
    except UserError as error:
        raise UserError(f"run.init_from: {error}") from error
    source = {array_path(name): value for name, value in saved.arrays.items() if name.startswith(LEARNER)}
    arrays, skipped, count = dict(fresh), list[str](), 0
    for name, initial in fresh.items():
        path = array_path(name)
        stays = () if policies else (_GAMES, *_POOL) if has_members else (_GAMES,)
        if not _is_wanted(path, config) or path.startswith(stays):
            continue
        value = _lookup(source, path, policies)
        if value is not None and (value.shape, value.dtype) == (initial.shape, initial.dtype):
            arrays[name] = value
            count += 1
        else:
            got = "it has none" if value is None else f"got {array_form(value)}"
            skipped.append(f"{path}: expected {array_form(initial)}, {got}")
    if not count:
        listed = "\n  ".join(skipped[:MOST_SHOWN]) or f"no path matches {', '.join(config.init_only)}"
        raise UserError(f"run.init_from: nothing of {saved.checkpoint} fits this run:\n  {listed}")
    return arrays, list_some(f"starts with {count} of {count + len(skipped)} arrays of {saved.checkpoint}", skipped)


def array_path(name: str) -> str:
    """Returns the path of an array by its name in a checkpoint, without the levels that flax calls "params".

    Examples:
        >>> array_path("learner.params['actor']['params']['torso']['Dense_0']['kernel']")
        'params/actor/torso/Dense_0/kernel'
    """
    keys = ["".join(match) for match in _KEY.findall(name.removeprefix(LEARNER))]
    return "/".join([*keys[:1], *(key for key in keys[1:] if key != "params")])


def _is_wanted(path: str, config: RunConfig) -> bool:
    part, _, rest = path.partition("/")
    # Run-time factors are changes of the other run.
    if part == "num_updates" or path.endswith("_factor") or (part == "opt_state" and not config.init_optimizer):
        return False
    patterns = config.init_only or ("*",)
    return any(fnmatchcase(rest, pattern) or fnmatchcase(rest, f"*/{pattern}") for pattern in patterns)


def _lookup(source: Mapping[str, np.ndarray], path: str, policies: Collection[str]) -> np.ndarray | None:
    if path in source:
        return source[path]
    for own, plain in _LEARNER.items() if not policies else ():
        other = plain + path.removeprefix(own) if path.startswith(own) else own + path.removeprefix(plain)
        if path.startswith((own, plain)) and other in source:
            return source[other]
    part, _, rest = path.partition("/")
    policy, _, of_policy = rest.partition("/")
    return source.get(f"{part}/{of_policy}") if policy in policies else None
