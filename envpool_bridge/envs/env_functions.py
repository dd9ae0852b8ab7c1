"""Functions that a vector environment sends to workers, to be called with one environment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

EnvFunction = Callable[[gymnasium.Env], Any]


def call_attribute(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], env: gymnasium.Env) -> Any:
    """Returns the result of a method, or the attribute if it is not callable."""
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def call_times(count: int, function: EnvFunction, env: gymnasium.Env) -> list[Any]:
    """Returns the results of `count` calls of a function."""
    return [function(env) for _ in range(count)]


def has_wrapper(wrapper_class: type[gymnasium.Wrapper], env: gymnasium.Env) -> bool:
    """Returns whether the environment has a wrapper of this class."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, wrapper_class):
            return True
        env = env.env
    return False
