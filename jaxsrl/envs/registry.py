"""Registry of all environments that a configuration can name, including those written in JAX."""

import dataclasses
import json
from functools import partial
from typing import Any

from envpool_bridge.envs.action_repeat import with_action_repeat
from envpool_bridge.envs.config import JAX_SUITES, EnvConfig
from envpool_bridge.envs.function_source import AnyEnv, as_source
from envpool_bridge.envs.last_step import LastStep, with_last_step
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.envs.suites.options import options_of
from envpool_bridge.errors import UserError
from jaxsrl.envs.action_repeat import ActionRepeatJaxEnv
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.cpu_rows import JaxSource
from jaxsrl.envs.last_step import LastStepJaxEnv
from jaxsrl.envs.levels import LevelsJaxEnv
from jaxsrl.envs.optional_imports import validate_env_id
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.envs.rock_paper_scissors import RockPaperScissors
from jaxsrl.envs.simple_spread import SimpleSpread

_OWN = {"CartPole-v1": CartPole, "RockPaperScissors-v1": RockPaperScissors, "simple_spread_v3": SimpleSpread}
_MADE_FROM = "_made_from"
_NOT_IN_JAX = (
    "frame_stack",
    "mask_from_info",
    "overlap_rows",
    "row_kwargs",
    "row_shares",
    "add_task",
    "stagger",
    "stages",
    "stage",
)


def make_env(env: str | EnvConfig | AnyEnv) -> EnvSource:
    """Returns the source of the environment's rows, for plans that step environments on the CPU.

    Args:
        env: id of a Gymnasium environment; configuration of any environment; or a function that makes one of Gymnasium or
            PettingZoo. A source is returned as it is. `made_from` returns what another one was made from.

    Raises:
        UserError: unknown id, bad kwargs, a package that is not installed, or a setting that the suite does not have.
    """
    config = EnvConfig(env) if isinstance(env, str) else env
    source = _configured_source(config) if isinstance(config, EnvConfig) else as_source(config)
    if source is not config:
        object.__setattr__(source, _MADE_FROM, config)  # sources are frozen; `dataclasses.replace` drops it
    return source


def made_from(env: str | EnvConfig | AnyEnv) -> EnvConfig | AnyEnv:
    """Returns the configuration or the function that `make_env` made a source from; other sources unchanged."""
    return EnvConfig(env) if isinstance(env, str) else getattr(env, _MADE_FROM, env)


def _configured_source(config: EnvConfig) -> EnvSource:
    config = config.with_suite()
    chosen = LastStep(config.last_action, config.last_reward)
    if config.suite == "smax":
        from jaxsrl.envs.smax import smax_source

        _reject_settings(config, *_NOT_IN_JAX, "levels")
        source = smax_source(config.id, config.arguments(), config.strict)
        source = dataclasses.replace(source, info_fields=config.info_fields)
        if config.action_repeat > 1:
            source = with_action_repeat(source, config.action_repeat)
        return with_last_step(source, config.suite, chosen) if chosen.action or chosen.reward else source
    if config.suite not in JAX_SUITES:
        return config.source()
    _reject_settings(config, *_NOT_IN_JAX, "info_fields")
    make_jax_env(config)  # raises here instead of in a worker
    return JaxSource(partial(make_jax_env, config), strict=config.strict)


def _reject_settings(config: EnvConfig, *names: str) -> None:
    usual = EnvConfig(config.id, config.suite)
    for name in names:
        if getattr(config, name) != getattr(usual, name):
            raise UserError(
                f"{name} is not for suite {config.suite!r}: expected {getattr(usual, name)!r}, got {getattr(config, name)!r}"
            )


def make_jax_env(config: EnvConfig) -> JaxEnv:
    """Returns the environment as pure functions, for plans that step environments on an accelerator.

    Raises:
        UserError: not a JAX environment, unknown id, bad kwargs, or a package that is not installed or too old.
        UnsupportedSpaceError: If an observation or action is neither an array nor a discrete value.
    """
    if config.levels:
        return LevelsJaxEnv(make_jax_env(dataclasses.replace(config, levels=0)), config.levels)
    chosen = LastStep(config.last_action, config.last_reward)
    if chosen.action or chosen.reward:
        plain = dataclasses.replace(config, last_action=False, last_reward=False)
        return LastStepJaxEnv(make_jax_env(plain), chosen)
    if config.action_repeat > 1:
        return ActionRepeatJaxEnv(make_jax_env(dataclasses.replace(config, action_repeat=1)), config.action_repeat)
    config = config.with_suite()
    if config.suite == "jax":
        validate_env_id(config.id, "jax", _OWN)
        return options_of(_OWN[config.id], "jax", config.id, config.arguments())
    if config.suite in JAX_SUITES:
        env = _package_env(config.suite, config.id, config.arguments())
        env.spec()  # rejects unknown ids and bad kwargs
        return env
    if config.id in _OWN:
        advice = f"{config.id} has one: --env.suite jax (others: suites gymnax, brax, jumanji, pgx)"
    else:
        advice = (
            f"{config.id} of suite {config.suite!r} is not one: expected a suite of {', '.join(sorted(JAX_SUITES))}"
        )
    raise UserError(f"device_only needs a JAX environment; {advice}")


def _package_env(suite: str, env_id: str, arguments: dict[str, Any]) -> JaxEnv:
    match suite:
        case "gymnax":
            from jaxsrl.envs.gymnax import GymnaxEnv

            return GymnaxEnv(env_id, json.dumps(arguments, sort_keys=True))
        case "brax":
            from jaxsrl.envs.brax import make_brax

            return make_brax(env_id, arguments)
        case "jumanji":
            from jaxsrl.envs.jumanji import JumanjiEnv

            return JumanjiEnv(env_id, json.dumps(arguments, sort_keys=True))
        case _:
            from jaxsrl.envs.pgx import make_pgx

            return make_pgx(env_id, arguments)
