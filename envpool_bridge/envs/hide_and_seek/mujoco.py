"""MuJoCo as one name: its module fills itself when it is imported, which type checkers cannot see."""

import importlib
from typing import Any

mujoco: Any = importlib.import_module("mujoco")
