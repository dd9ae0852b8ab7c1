"""Record of the arguments that an agent was made from."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from agents.settings import validate_effect


class Binding(NamedTuple):
    """Arguments that an agent was made from, so that a run names its settings, and another process makes the agent again.

    Attributes:
        make: constructor, called with (config, spec, network).
        config: configuration of the algorithm.
        network: configuration of the network, or a network.
        parts: fields of the agent as it was made.
    """

    make: Callable[..., Any]
    config: Any
    network: Any
    parts: tuple[Any, ...]

    def describes(self, agent: tuple[Any, ...]) -> bool:
        """Returns whether no part of the agent was replaced since it was made."""
        return len(agent) == len(self.parts) and all(map(operator.is_, self.parts[:-1], agent[:-1]))


MakeAgent = TypeVar("MakeAgent", bound=Callable[..., Any])


def keeps_binding(make: MakeAgent) -> MakeAgent:
    """Returns a constructor of agents, called with (config, spec, network), whose agents have a `binding`.

    It raises UserError for settings without effect.
    """

    @functools.wraps(make)
    def bound(config: Any, spec: Any, network: Any, **options: Any) -> Any:
        validate_effect(config, spec, network)
        agent = make(config, spec, network, **options)
        return agent._replace(binding=Binding(bound, config, network, tuple(agent)))

    return bound  # pyright: ignore[reportReturnType]
