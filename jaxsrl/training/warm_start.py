"""Warm starts: a new run begins with arrays that another run has learned."""

import re
from collections.abc import Collection, Iterator, Mapping
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
_MEMBERS = "params/members"
"""Array that only runs with a pool of past selves have; a policy of that name has a prefix."""
_POOL = ("params/slots/", _MEMBERS, "extra/library/")
_GAMES = "extra/games/"
_OPTIMIZER = {"opt_state", "rate_scale"}


def warm_start(
    config: RunConfig,
    fresh: Arrays,
    policies: Collection[str],
    has_members: bool = False,
    frozen: Collection[str] = (),
) -> tuple[Arrays, str]:
    """Returns the arrays of a fresh learner state with those of another run in place of them, and a report.

    The number of updates stays 0. Arrays are compared by path, shape and dtype. An array of one of several policies also fits
    that of a run with a single policy. The learner of a run with a pool of past selves fits that of a run without one. The
    results of games in progress are never taken.

    Args:
        config: names the other run, the paths to take, and whether to take the optimizer's state.
        fresh: learner state by name.
        policies: names of the policies of the new run; empty if one acts for all agents.
        has_members: whether the new run names the members of its pool of past selves, which it keeps.
        frozen: policies whose parameters are of runs that the new run names, which it keeps.

    Raises:
        UserError: If there is no such run, nothing of it fits, or only the optimizer's state of a policy.
    """
    try:
        saved = read_saved_run(Path(config.init_from))
    except CorruptCheckpointError as error:
        raise UserError(f"run.init_from: damaged checkpoint {error}") from error
    except UserError as error:
        raise UserError(f"run.init_from: {error}") from error
    source = {array_path(name): value for name, value in saved.arrays.items() if name.startswith(LEARNER)}
    arrays, skipped, taken = dict(fresh), list[str](), list[str]()
    paths = {name: array_path(name) for name in fresh}
    # Without a pool, these are prefixes of policies with such names.
    stays = () if _MEMBERS not in paths.values() else (_GAMES, *_POOL) if has_members else (_GAMES,)
    stays += tuple(f"{prefix}{name}/" for prefix in ("params/", "params/learner/") for name in frozen)
    for name, initial in fresh.items():
        path = paths[name]
        if not _is_wanted(path, config) or path.startswith(stays):
            continue
        value = _lookup(source, path, policies)
        if value is not None and (value.shape, value.dtype) == (initial.shape, initial.dtype):
            arrays[name] = value
            taken.append(path)
        else:
            got = "it has none" if value is None else f"got {array_form(value)}"
            skipped.append(f"{path}: expected {array_form(initial)}, {got}")
    if not taken:
        listed = "\n  ".join(skipped[:MOST_SHOWN]) or f"no path matches {', '.join(config.init_only)}"
        raise UserError(f"run.init_from: nothing of {saved.checkpoint} fits this run:\n  {listed}")
    _require_parameters(taken, policies, str(saved.checkpoint))
    return arrays, list_some(
        f"starts with {len(taken)} of {len(taken) + len(skipped)} arrays of {saved.checkpoint}", skipped
    )


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
    if part == "num_updates" or path.endswith("_factor") or (_is_of_optimizer(path) and not config.init_optimizer):
        return False
    patterns = config.init_only or ("*",)
    return any(fnmatchcase(rest, pattern) or fnmatchcase(rest, f"*/{pattern}") for pattern in patterns)


def _is_of_optimizer(path: str) -> bool:
    """Returns whether an array belongs to an optimizer: of the agent, or of a part of its `extra`."""
    keys = path.split("/")
    return keys[0] != "params" and not _OPTIMIZER.isdisjoint(keys)


def _lookup(source: Mapping[str, np.ndarray], path: str, policies: Collection[str]) -> np.ndarray | None:
    return next((source[name] for name in _names_elsewhere(path, policies) if name in source), None)


def _names_elsewhere(path: str, policies: Collection[str]) -> Iterator[str]:
    """Yields the paths that an array may have in other runs: with or without a pool, then with a single policy."""
    same = [path, *_with_or_without_pool(path, policies)]
    yield from same
    for name in same:
        part, _, rest = name.partition("/")
        policy, _, of_policy = rest.partition("/")
        if policy in policies:
            yield f"{part}/{of_policy}"
            yield from _with_or_without_pool(f"{part}/{of_policy}", policies)


def _with_or_without_pool(path: str, policies: Collection[str]) -> Iterator[str]:
    for own, plain in _LEARNER.items():
        if own.split("/")[1] in policies:
            continue  # the prefix is that of a policy
        if path.startswith(own):
            yield plain + path.removeprefix(own)
        elif path.startswith(plain):
            yield own + path.removeprefix(plain)


def _require_parameters(taken: Collection[str], policies: Collection[str], checkpoint: str) -> None:
    """Raises UserError if a policy would continue with the optimizer's state of other parameters than its own."""
    parts = {(path.partition("/")[0], _policy_of(path, policies)) for path in taken}
    for part, policy in sorted(parts):
        # Critics that do not act are in `extra`.
        if part == "opt_state" and parts.isdisjoint({("params", policy), ("extra", policy)}):
            of_policy = f" of policy {policy!r}" if policy else ""
            raise UserError(
                f"run.init_from: of {checkpoint} this run would take the optimizer's state{of_policy} without its parameters: "
                f"expected both; use no --run.init-optimizer, or take the parameters also (--run.init-only)"
            )


def _policy_of(path: str, policies: Collection[str]) -> str:
    """Returns the name of the policy that an array belongs to, "" if none."""
    keys = path.split("/")[1:]
    if keys[:1] == ["learner"] and "learner" not in policies:
        keys = keys[1:]
    return keys[0] if keys and keys[0] in policies else ""
