"""Functions for the environments of a vector environment, each pickled alone, so that environments share no object."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import cloudpickle

from envpool_bridge.envs.env_functions import EnvFunction, call_times
from envpool_bridge.errors import UserError


def pickle_setters(name: str, values: Any, num_envs: int) -> list[bytes]:
    """Returns a function for each environment, which sets an attribute.

    Args:
        name: Name of the attribute.
        values: list or tuple of one value for each environment, or one value for all.
        num_envs: number of environments.

    Raises:
        UserError: If the number of values is not the number of environments.
    """
    is_each = isinstance(values, list | tuple)
    each: list[Any] = list(values) if is_each else [values]  # pyright: ignore[reportUnknownArgumentType]
    if is_each and len(each) != num_envs:
        raise UserError(f"expected one value per environment, got {len(each)} for {num_envs} environments")
    pickled = [cloudpickle.dumps(methodcaller("set_wrapper_attr", name, value)) for value in each]
    return pickled if is_each else pickled * num_envs


def pickle_calls(function: EnvFunction, indices: Sequence[int], num_envs: int) -> list[bytes]:
    """Returns a function for each environment, which calls `function` as often as `indices` holds its index.

    The function returns a list of results; it is b"" where there is no call.

    Raises:
        UserError: If no environment has an index.
    """
    times = Counter(indices)
    if not times.keys() <= set(range(num_envs)):
        raise UserError(f"indices must lie in [0, {num_envs}), got {list(indices)}")
    pickled = {count: cloudpickle.dumps(partial(call_times, count, function)) for count in set(times.values())}
    return [pickled.get(times[row], b"") for row in range(num_envs)]
