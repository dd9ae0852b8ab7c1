"""Lookup of ids in Gymnasium's registry, with hints for unknown ones, and the registry as data for other processes."""

import dataclasses
import importlib
import importlib.util
import re
import uuid
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.envs.registration import find_highest_version, get_env_id, load_env_creator, parse_env_id

from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import did_you_mean
from envpool_bridge.errors import UserError

# Ids are known only after a package of their suite was imported.
_SUITES_BY_PREFIX = {
    "ALE/": "atari",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    "Vizdoom": "vizdoom",
    "Crafter": "crafter",
}
_PROCESS = uuid.uuid4().hex


def suite_of_id(env_id: str) -> Any:
    """Returns the suite that preprocesses an id in the standard way: by its prefix, otherwise "gymnasium"."""
    return next((suite for prefix, suite in _SUITES_BY_PREFIX.items() if env_id.startswith(prefix)), "gymnasium")


def registration(env_id: str) -> Registration:
    """Returns the registration of an id: plain data that can be sent to a process without registrations.

    Args:
        env_id: Environment id, as in `gymnasium.make`; "module:id" imports the module first, which registers the id.

    Raises:
        UserError: unknown id or module, or a package that the environment needs is missing.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    if name.startswith("ALE/"):
        validate_installed("ale_py", "atari")
        register_atari()
    try:
        registered = gymnasium.spec(name)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UserError(
            f"unknown environment id {env_id!r}: {str(error).splitlines()[0]}{_advice(name, gymnasium.registry)}"
        ) from error
    return for_workers(registered)


def for_workers(registered: Registration) -> Registration:
    """Returns a registration that other processes can use, which have another main module.

    Raises:
        UserError: If a package that the environment needs is missing.
    """
    if isinstance(registered.entry_point, str) and "mujoco" in registered.entry_point:
        validate_installed("mujoco", "mujoco")
        validate_installed("imageio", "mujoco")
    if isinstance(registered.entry_point, str) and "box2d" in registered.entry_point:
        validate_installed("Box2D", "box2d")
    return dataclasses.replace(registered, entry_point=_outside_main(registered.entry_point))


def _outside_main(entry_point: Any) -> Any:
    """Returns the object of a name in the main module, which another process does not have; others as they are."""
    is_name = isinstance(entry_point, str) and entry_point.startswith("__main__:")
    return load_env_creator(entry_point) if is_name else entry_point


def dumps_with_registrations(sent: Any) -> bytes:
    """Returns an object pickled by cloudpickle; a process that loads it gets the registrations of this one too.

    Functions may then make ids that only the user's script, or a package that it imports, registers. A registration that
    cannot be pickled is replaced by one that says so.
    """
    registered = list(gymnasium.registry.values())
    try:
        registrations = cloudpickle.dumps([_portable(each) for each in registered])
    except Exception:  # noqa: BLE001  raised by pickling a user's objects
        registrations = cloudpickle.dumps([_portable_or_rejecting(each) for each in registered])
    return cloudpickle.dumps(_Sent(registrations, sent))


class _Sent:
    """An object and pickled registrations, which unpickles as the object alone."""

    def __init__(self, registrations: bytes, sent: Any) -> None:
        self._reduced = _receive, (_PROCESS, registrations, sent)

    def __reduce__(self) -> Any:
        return self._reduced


def _receive(process: str, registrations: bytes, sent: Any) -> Any:
    if process != _PROCESS:
        # A package that registers its ids when a worker imports it does so again.
        warnings.filterwarnings("ignore", ".*Overriding environment")
        gymnasium.registry.update({each.id: each for each in cloudpickle.loads(registrations)})
    return sent


def _portable(registered: Registration) -> Registration:
    creators = _lazy(registered.entry_point), _lazy(registered.vector_entry_point)
    if creators == (registered.entry_point, registered.vector_entry_point):
        return registered  # the usual case
    return dataclasses.replace(registered, entry_point=creators[0], vector_entry_point=creators[1])


def _portable_or_rejecting(registered: Registration) -> Registration:
    """Returns a registration whose `make` raises UserError if this one cannot be sent: its id may never be made."""
    try:
        portable = _portable(registered)
        cloudpickle.dumps(portable)
    except Exception as error:  # noqa: BLE001  raised by pickling a user's objects
        reject = partial(_raise_not_sent, f"{registered.id} ({type(error).__name__}: {error})")
        return Registration(registered.id, entry_point=reject, vector_entry_point=reject)
    return portable


def _raise_not_sent(registered: str, **_: Any) -> Any:
    raise UserError(
        f"cannot send the registration of {registered} to worker processes: register it with the name of a class in a module"
    )


def _lazy(entry_point: Any) -> Any:
    known = _outside_main(entry_point)
    return known if known is None or isinstance(known, str | _Creator) else _Creator(cloudpickle.dumps(known))


class _Creator:
    """Entry point that is unpickled when it makes an environment, so that nothing is imported for other ids."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return cloudpickle.loads(self._pickled)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # Gymnasium reads `metadata` of a class
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(cloudpickle.loads(self._pickled), name)


def newest_registration(env_id: str) -> Registration:
    """Returns the registration of an id, the newest version of one without a version, as `gymnasium.make` does.

    Raises:
        UserError: If `registration` raises it.
    """
    module = env_id.rpartition(":")[0]
    if module:
        _import(module, env_id)
    return registration(with_newest_version(env_id))


def with_newest_version(env_id: str) -> str:
    """Returns an id with the newest registered version if it has none; others, and unknown ones, as they are. Imports nothing."""
    module, colon, name = env_id.rpartition(":")
    try:
        namespace, plain, version = parse_env_id(name)
    except gymnasium.error.Error:
        return env_id
    if version is not None or (newest := find_highest_version(namespace, plain)) is None:
        return env_id
    newest_id = f"{module}{colon}{get_env_id(namespace, plain, newest)}"
    gymnasium.logger.warn(f"{env_id} has no version: {newest_id} is used, the newest one")
    return newest_id


def registered_with_prefix(env_id: str, suite: str, prefixes: tuple[str, ...]) -> Registration:
    """Returns the registration of an id in a suite whose package has been imported.

    Args:
        env_id: Id of the environment.
        suite: Suite for messages.
        prefixes: prefixes of the suite's ids.

    Raises:
        UserError: If the suite has no such id.
    """
    known = [name for name in gymnasium.registry if name.startswith(prefixes)]
    if env_id in known:
        return gymnasium.spec(env_id)
    hint = did_you_mean(env_id, known, before="; ")
    example = f"{len(known)} ids that start with {' or '.join(prefixes)}"
    raise UserError(f"unknown environment id {env_id!r} of suite {suite!r}: expected one of {example}{hint}")


def register_atari() -> None:
    """Registers ALE/*, once."""
    import ale_py

    if "ALE/Pong-v5" not in gymnasium.registry:
        gymnasium.register_envs(ale_py)


def _atari_games() -> set[str]:
    """Returns the names of ALE's games, without importing it, which registers the ids of before ALE/* too."""
    package = importlib.util.find_spec("ale_py")
    places = () if package is None else package.submodule_search_locations or ()
    return {rom.stem.title().replace("_", "") for place in places for rom in Path(place, "roms").glob("*.bin")}


def _import(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"environment id {env_id!r} names the module {module!r}, which does not exist ({error}): install it, or put its "
            f"directory on PYTHONPATH"
        ) from error


def _advice(name: str, known: dict[str, Registration]) -> str:
    for prefix, suite in _SUITES_BY_PREFIX.items():
        if name.startswith(prefix) and name not in known:
            return f"; its suite is {suite!r}: --env.suite {suite}"
    game = re.fullmatch(r"(\w+?)(-ram)?(NoFrameskip|Deterministic)?(-v[04])?", name)
    if game and game[1] in _atari_games():
        return f"; did you mean ALE/{game[1]}-v5?"
    return did_you_mean(name, known, before="; ") or "; if a module of yours registers it, write 'module:id'"
