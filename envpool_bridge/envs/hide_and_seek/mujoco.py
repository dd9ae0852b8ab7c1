"""MuJoCo as one name: its module is filled at import, which type checkers cannot follow."""

import importlib
from typing import Any

mujoco: Any = importlib.import_module("mujoco")
