"""Every algorithm by name, for the command line."""

from collections.abc import Callable
from typing import Any

from agents.api import Agent
from agents.ppo import PPOConfig, make_ppo

AGENTS: dict[str, Callable[..., Agent]] = {"ppo": make_ppo}
"""Constructors: `AGENTS[name](config, spec, network)`."""

AGENT_CONFIGS: dict[str, type[Any]] = {"ppo": PPOConfig}
"""The configuration each constructor takes."""
