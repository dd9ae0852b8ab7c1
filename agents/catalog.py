"""Every algorithm by name, for the command line."""

from collections.abc import Callable
from typing import Any

from agents.a2c import A2CConfig, make_a2c
from agents.api import AnyAgent
from agents.coma import COMAConfig, make_coma
from agents.ddpg import DDPGConfig, make_ddpg
from agents.dqn import make_dqn
from agents.dqn_config import DQNConfig
from agents.impala import IMPALAConfig, make_impala
from agents.maddpg import MADDPGConfig, make_maddpg
from agents.ppg import PPGConfig, make_ppg
from agents.ppo import PPOConfig, make_ppo
from agents.qmix import QMIXConfig, make_qmix
from agents.r2d2 import R2D2Config, make_r2d2
from agents.reinforce import REINFORCEConfig, make_reinforce
from agents.sac import SACConfig, make_sac
from agents.td3 import TD3Config, make_td3
from agents.vdn import VDNConfig, make_vdn

AGENTS: dict[str, Callable[..., AnyAgent]] = {
    "a2c": make_a2c,
    "coma": make_coma,
    "ddpg": make_ddpg,
    "dqn": make_dqn,
    "impala": make_impala,
    "maddpg": make_maddpg,
    "ppg": make_ppg,
    "ppo": make_ppo,
    "qmix": make_qmix,
    "r2d2": make_r2d2,
    "reinforce": make_reinforce,
    "sac": make_sac,
    "td3": make_td3,
    "vdn": make_vdn,
}
"""Constructors: `AGENTS[name](config, spec, network)`."""

AGENT_CONFIGS: dict[str, type[Any]] = {
    "a2c": A2CConfig,
    "coma": COMAConfig,
    "ddpg": DDPGConfig,
    "dqn": DQNConfig,
    "impala": IMPALAConfig,
    "maddpg": MADDPGConfig,
    "ppg": PPGConfig,
    "ppo": PPOConfig,
    "qmix": QMIXConfig,
    "r2d2": R2D2Config,
    "reinforce": REINFORCEConfig,
    "sac": SACConfig,
    "td3": TD3Config,
    "vdn": VDNConfig,
}
"""The configuration each constructor takes. Those of agents that learn from replay have a field `replay`."""
