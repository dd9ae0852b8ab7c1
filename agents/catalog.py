"""Every algorithm by name, for the command line."""

from collections.abc import Callable
from typing import Any

from agents.a2c import A2CConfig, make_a2c
from agents.api import AnyAgent
from agents.coma import COMAConfig, make_coma
from agents.impala import IMPALAConfig, make_impala
from agents.ppg import PPGConfig, make_ppg
from agents.ppo import PPOConfig, make_ppo
from agents.reinforce import REINFORCEConfig, make_reinforce

AGENTS: dict[str, Callable[..., AnyAgent]] = {
    "a2c": make_a2c,
    "coma": make_coma,
    "impala": make_impala,
    "ppg": make_ppg,
    "ppo": make_ppo,
    "reinforce": make_reinforce,
}
"""Constructors: `AGENTS[name](config, spec, network)`."""

AGENT_CONFIGS: dict[str, type[Any]] = {
    "a2c": A2CConfig,
    "coma": COMAConfig,
    "impala": IMPALAConfig,
    "ppg": PPGConfig,
    "ppo": PPOConfig,
    "reinforce": REINFORCEConfig,
}
"""The configuration each constructor takes."""
