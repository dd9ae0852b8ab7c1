"""A password of its own for a Ray cluster that is started here: other users of the machine reach the loopback interface too.

Ray asks every caller for a token if `RAY_AUTH_MODE=token` (Ray 2.60; older ones may ignore it). The token
lies in a file that only this user can read. A RAY_AUTH_MODE that the user has set stays.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportAttributeAccessIssue=false

import contextlib
import importlib
import os
import secrets
from pathlib import Path
from typing import Any

MODE, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"
_FILE = "token"


def make_token(directory: Path) -> dict[str, str]:
    """Writes a token into a directory of this user's; the environment of those who are to use it, {} if the user has decided."""
    if MODE in os.environ:
        return {}
    path = directory / _FILE
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(secrets.token_hex(32))
    return {MODE: "token", PATH: str(path)}


def token_of(directory: Path) -> dict[str, str]:
    """Returns the environment of those who are to use the token in a directory; {} if there is none."""
    path = directory / _FILE
    return {MODE: "token", PATH: str(path)} if MODE not in os.environ and path.exists() else {}


def read_again() -> None:
    """Makes this process's Ray read the environment's token again; Ray keeps its first result otherwise."""
    raylet: Any = importlib.import_module("ray._raylet")
    loader = getattr(raylet, "AuthenticationTokenLoader", None)
    with contextlib.suppress(AttributeError):  # an older Ray, without tokens
        raylet.Config.initialize("")  # the mode first: who has a mode and no token ends the process
        if loader is not None:
            loader.instance().reset_cache()
