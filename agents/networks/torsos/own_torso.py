"""Torsos that users write, by the name of the function or class that makes them."""

import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any

import flax.linen as nn

from agents.networks.config import NetworkConfig
from envpool_bridge.errors import UserError


def load_own_torso(name: str) -> Callable[[NetworkConfig], Any]:
    """Returns the function or class at "module:name".

    Raises:
        UserError: If there is none.
    """
    module, _, path = name.partition(":")
    try:
        make: Any = reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"torso {name!r}: expected 'module:name' of a function or class that takes a NetworkConfig and makes a flax module: "
            f"{error}; put the module's directory on PYTHONPATH"
        ) from error
    if not callable(make):
        raise UserError(f"torso {name!r}: expected a function or class, got {make!r}")
    return make  # pyright: ignore[reportReturnType]


def make_own_torso(config: NetworkConfig) -> nn.Module:
    """Returns a new module of the torso that the configuration names.

    Raises:
        UserError: If it is no flax module.
    """
    torso = load_own_torso(config.torso)(config)
    if isinstance(torso, nn.Module):
        return torso
    raise UserError(f"torso {config.torso!r}: expected a flax.linen.Module, got {torso!r}")


def validate_features(config: NetworkConfig, features: Any) -> None:
    """Raises UserError unless an own torso returned features of the size that cores and heads expect."""
    shape = getattr(features, "shape", ())
    if shape[-1:] != config.hidden_sizes[-1:]:
        raise UserError(
            f"torso {config.torso!r}: expected features [..., {config.hidden_sizes[-1]}], the last of hidden_sizes, got {shape}"
        )
