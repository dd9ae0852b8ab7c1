"""The algorithms by name, with their configurations."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from agents.a2c import A2CConfig, make_a2c
from agents.alphazero import AlphaZeroConfig, make_alphazero
from agents.api import AnyAgent
from agents.ddpg import DDPGConfig, make_ddpg
from agents.dqn import DQNConfig, make_dqn
from agents.dreamer import DreamerConfig, make_dreamer
from agents.impala import IMPALAConfig, make_impala
from agents.multi_agent.coma import COMAConfig, make_coma
from agents.multi_agent.maddpg import MADDPGConfig, make_maddpg
from agents.multi_agent.qmix import QMIXConfig, make_qmix
from agents.multi_agent.vdn import VDNConfig, make_vdn
from agents.muzero import MuZeroConfig, make_muzero
from agents.offline.awac import AWACConfig, make_awac
from agents.offline.bc import BCConfig, make_bc
from agents.offline.bcq import BCQConfig, make_bcq
from agents.offline.cql import CQLConfig, make_cql
from agents.offline.decision_transformer import DecisionTransformerConfig, make_decision_transformer
from agents.offline.discrete_bcq import DiscreteBCQConfig, make_discrete_bcq
from agents.offline.discrete_cql import DiscreteCQLConfig, make_discrete_cql
from agents.offline.iql import IQLConfig, make_iql
from agents.offline.rebrac import ReBRACConfig, make_rebrac
from agents.offline.td3_bc import TD3BCConfig, make_td3_bc
from agents.ppg import PPGConfig, make_ppg
from agents.ppo import PPOConfig, make_ppo
from agents.r2d2 import R2D2Config, make_r2d2
from agents.reinforce import REINFORCEConfig, make_reinforce
from agents.sac import SACConfig, make_sac
from agents.stochastic_muzero import StochasticMuZeroConfig, make_stochastic_muzero
from agents.td3 import TD3Config, make_td3
from envpool_bridge.errors import UserError


class Algorithm(NamedTuple):
    """An algorithm of the catalog.

    Attributes:
        config: class of its configuration. Agents that learn from replay have a field `replay` there.
        make: constructor, called with (configuration, spec, network configuration).
        acts_for_teams: Whether it acts for whole environments, where the position of a row shows its agent.
    """

    config: type[Any]
    make: Callable[..., AnyAgent]
    acts_for_teams: bool = False


AGENTS: dict[str, Algorithm] = {
    "a2c": Algorithm(A2CConfig, make_a2c),
    "alphazero": Algorithm(AlphaZeroConfig, make_alphazero),
    "awac": Algorithm(AWACConfig, make_awac),
    "bc": Algorithm(BCConfig, make_bc),
    "bcq": Algorithm(BCQConfig, make_bcq),
    "coma": Algorithm(COMAConfig, make_coma, acts_for_teams=True),
    "cql": Algorithm(CQLConfig, make_cql),
    "ddpg": Algorithm(DDPGConfig, make_ddpg),
    "decision_transformer": Algorithm(DecisionTransformerConfig, make_decision_transformer),
    "discrete_bcq": Algorithm(DiscreteBCQConfig, make_discrete_bcq),
    "discrete_cql": Algorithm(DiscreteCQLConfig, make_discrete_cql),
    "dqn": Algorithm(DQNConfig, make_dqn),
    "dreamer": Algorithm(DreamerConfig, make_dreamer),
    "impala": Algorithm(IMPALAConfig, make_impala),
    "iql": Algorithm(IQLConfig, make_iql),
    "maddpg": Algorithm(MADDPGConfig, make_maddpg, acts_for_teams=True),
    "muzero": Algorithm(MuZeroConfig, make_muzero),
    "ppg": Algorithm(PPGConfig, make_ppg),
    "ppo": Algorithm(PPOConfig, make_ppo),
    "qmix": Algorithm(QMIXConfig, make_qmix, acts_for_teams=True),
    "r2d2": Algorithm(R2D2Config, make_r2d2),
    "rebrac": Algorithm(ReBRACConfig, make_rebrac),
    "reinforce": Algorithm(REINFORCEConfig, make_reinforce),
    "sac": Algorithm(SACConfig, make_sac),
    "stochastic_muzero": Algorithm(StochasticMuZeroConfig, make_stochastic_muzero),
    "td3": Algorithm(TD3Config, make_td3),
    "td3_bc": Algorithm(TD3BCConfig, make_td3_bc),
    "vdn": Algorithm(VDNConfig, make_vdn, acts_for_teams=True),
}
"""The name is `Agent.name` of the agents that `make` returns."""


def find_make_agent(config: Any) -> Callable[..., AnyAgent]:
    """Returns the constructor of the algorithm whose configuration `config` is.

    Raises:
        UserError: If it is the configuration of no algorithm in `AGENTS`.
    """
    for algorithm in AGENTS.values():
        if type(config) is algorithm.config:
            return algorithm.make
    known = ", ".join(algorithm.config.__name__ for algorithm in AGENTS.values())
    raise UserError(f"no algorithm has the configuration {config!r}: expected one of {known}, or pass make_agent")


def find_algorithm(config: Any) -> str | None:
    """Returns the name in `AGENTS` of the algorithm whose configuration `config` is; None if there is none."""
    return next((name for name, algorithm in AGENTS.items() if type(config) is algorithm.config), None)


def fill_sizes(config: Any, total_updates: int, rollout_length: int, num_rows: int) -> Any:
    """Returns the configuration with those of its fields filled that the run determines.

    Args:
        config: Configuration of an agent; fields that it lacks are skipped.
        total_updates: Updates of the whole run, for schedules.
        rollout_length: Steps of a trajectory.
        num_rows: rows of a trajectory.
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    sizes = {"total_updates": total_updates, "rollout_length": rollout_length, "num_rows": num_rows}
    names = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: size for name, size in sizes.items() if name in names})
