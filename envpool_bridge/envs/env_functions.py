"""Functions that a vector environment sends to workers, to be called with one environment."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium


def call_attribute(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], env: gymnasium.Env) -> Any:
    """Returns the result of a method, or the attribute if it is not callable."""
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def has_wrapper(wrapper_class: type[gymnasium.Wrapper], env: gymnasium.Env) -> bool:
    """Returns whether the environment has a wrapper of this class."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, wrapper_class):
            return True
        env = env.env
    return False
