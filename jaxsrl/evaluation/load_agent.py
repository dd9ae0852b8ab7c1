"""Loading of an agent, its parameters and its environment from a run or a checkpoint."""

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import jax

from agents.api import AnyAgent, Params
from agents.catalog import AGENTS
from agents.networks.config import NetworkConfig
from agents.transforms.level_replay import with_level_replay
from agents.transforms.self_play import SelfPlayConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.fingerprint import changed_modules
from envpool_bridge.envs.function_name import load_function
from envpool_bridge.envs.function_source import AnyEnv
from envpool_bridge.envs.json_arguments import json_text
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.names import LEARNER
from jaxsrl.checkpoints.partial_restore import format_report, restore_matching
from jaxsrl.config.files import nest_options, with_file_options
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import from_json
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.evaluate import ALL_AGENTS
from jaxsrl.evaluation.while_training import evaluation_source
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch
from jaxsrl.population.imitation import ImitationConfig, imitating_agent
from jaxsrl.population.policies import (
    PoliciesConfig,
    PolicyDefaults,
    make_own_agents,
    rebuild_multi_policy_agent,
    saved_levels,
    saved_policies,
)
from jaxsrl.runs.read_checkpoint import read_saved_run
from jaxsrl.training.run_state import restore_state, state_to_arrays

_PETTINGZOO = ("pettingzoo/", "mpe2/")  # packages of environments
_FOREIGN = "GymV2"  # Gymnasium's ids for environments of older packages, whose ids are arguments


@dataclasses.dataclass(frozen=True)
class LoadedAgent:
    """Agent, parameters and environment of a checkpoint.

    Attributes:
        agent: agent made from the saved configuration.
        params: parameters of the checkpoint.
        source: source of the environments, at the last stage of a curriculum.
        checkpoint: directory of the checkpoint.
        update: update of the checkpoint.
        run_directory: Run directory of the checkpoint; None for a checkpoint that was copied elsewhere.
        problems: why newer checkpoints of the run were skipped.
        mismatches: arrays and modules that did not match, as text; "" if all did.
        extra: `LearnerState.extra` of the agent.
        env_kwargs: arguments of the environments that replace those of training.
        acts_for_teams: whether the agent needs the rows of all agents of an environment, also to act for some of them.
        metadata: description of the agent and the experiment.
    """

    agent: AnyAgent = dataclasses.field(repr=False)
    params: Params = dataclasses.field(repr=False)
    source: EnvSource = dataclasses.field(repr=False)
    checkpoint: Path
    update: int
    run_directory: Path | None
    problems: tuple[str, ...] = ()
    mismatches: str = ""
    extra: Any = dataclasses.field(default=(), repr=False)
    env_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    acts_for_teams: bool = True
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any], repr=False)


def load_agent(
    path: Path,
    partial: bool = False,
    env: EnvConfig | AnyEnv | None = None,
    trust_env: bool = False,
    agent_options: Mapping[str, Any] | None = None,
    env_kwargs: Any = "{}",
) -> LoadedAgent:
    """Loads the newest intact checkpoint of a run directory, or one checkpoint directory.

    Args:
        path: run directory or checkpoint directory.
        partial: load the matching arrays if not all match; the others keep their initial values and are listed in
            `mismatches`.
        env: environment that replaces the checkpoint's; required if that is a function that no module contains.
        trust_env: import the modules of the functions and the environment that the checkpoint names, which runs their code.
        agent_options: options of the algorithm that replace those of the checkpoint, by dotted name, for example
            `{"gumbel.num_simulations": 200}` of a search; not of policies with an algorithm of their own.
        env_kwargs: arguments of the environments that replace those of training, in the forms of `EnvConfig.kwargs`; None for
            those of the run's evaluation (`--eval.env-kwargs`).

    Raises:
        UserError: If the path is neither, the checkpoint's agent cannot be made, or it has no such option.
        UserError: If the checkpoint names modules, and neither `env` nor `trust_env` is given.
        CorruptCheckpointError: If the given checkpoint is damaged.
    """
    use_synchronous_cpu_dispatch()
    saved = read_saved_run(path)
    if not trust_env:
        _validate_names_no_code(saved.metadata, env is not None)
    env_kwargs = evaluation_kwargs(saved.metadata) if env_kwargs is None else json_text(env_kwargs, "env_kwargs")
    agent, source = rebuild(saved.metadata, env, agent_options=agent_options, env_kwargs=env_kwargs)
    arrays, report = saved.arrays, _describe_changes(saved.metadata)
    if partial:
        arrays, mismatches = restore_matching(
            arrays, state_to_arrays(agent.init(jax.random.key(0)), with_replay=False), LEARNER
        )
        report += format_report(arrays, mismatches) if mismatches else ""
    state = restore_state(agent, jax.random.key(0), arrays)
    update, params, extra = int(state.num_updates), state.params, state.extra
    if saved_policies(saved.metadata).self_play.slots or saved_levels(saved.metadata):
        agent, _ = rebuild(saved.metadata, env, learner_only=True, agent_options=agent_options)
        params, extra = params["learner"], extra["agent"]
    algorithm = AGENTS.get(_algorithm(saved.metadata))
    team = algorithm is None or algorithm.acts_for_teams or saved_policies(saved.metadata).mapping != "{}"
    run, problems, changes = saved.run_directory, saved.problems, json.loads(env_kwargs)
    return LoadedAgent(
        agent,
        params,
        source,
        saved.checkpoint,
        update,
        run,
        problems,
        report.strip(),
        extra,
        changes,
        acts_for_teams=team,
        metadata=saved.metadata,
    )


def _validate_names_no_code(metadata: Mapping[str, Any], has_env: bool) -> None:
    if names := named_code(metadata, has_env):
        raise UserError(
            f"what this checkpoint names, {', '.join(names)}, is in a module whose code would be run: if you trust it, "
            f"use trust_env=True (--trust-env); an environment can be passed instead, jaxsrl.load_agent(path, env=...)"
        )


def _describe_changes(metadata: Mapping[str, Any]) -> str:
    changed = changed_modules(metadata.get("code", {}))
    return f"modules have changed since training: {', '.join(changed)}\n" if changed else ""


def named_code(metadata: Mapping[str, Any], has_env: bool = False) -> list[str]:
    """Returns the names of functions and modules that loading a checkpoint would import.

    Args:
        metadata: metadata of the checkpoint.
        has_env: whether another environment replaces that of the metadata.
    """
    saved = metadata.get("experiment", {})
    names, env = [saved.get("make_agent")], saved.get("env")
    if isinstance(env, str):
        names.append(None if has_env else env)
    elif isinstance(env, dict) and not has_env:
        name, suite = str(env.get("id", "")), env.get("suite", "gymnasium")
        texts = [name, *_strings(env.get("kwargs")), *_strings(evaluation_kwargs(metadata))]
        is_foreign = name.startswith(_FOREIGN) or (suite == "pettingzoo" and not name.startswith(_PETTINGZOO))
        names += [name] * is_foreign + [text for text in texts if ":" in text]
    return [name for name in dict.fromkeys(names) if name]


def _strings(kwargs: Any) -> list[str]:
    """Returns all strings in a JSON object, or in its text, without keys."""
    if isinstance(kwargs, str):
        with contextlib.suppress(ValueError):
            decoded = json.loads(kwargs)
            return [decoded] if isinstance(decoded, str) else _strings(decoded)
        return [kwargs]
    values = list(kwargs.values()) if isinstance(kwargs, dict) else kwargs if isinstance(kwargs, list) else []
    return [text for value in values for text in ([value] if isinstance(value, str) else _strings(value))]


def rebuild(
    metadata: dict[str, Any],
    env: EnvConfig | AnyEnv | None = None,
    learner_only: bool = False,
    agent_options: Mapping[str, Any] | None = None,
    env_kwargs: str = "{}",
) -> tuple[AnyAgent, EnvSource]:
    """Returns the agent and the environments that a checkpoint's metadata describe.

    Args:
        metadata: metadata of the checkpoint.
        env: replaces the environment of the metadata.
        learner_only: makes the agent of `params["learner"]`, without a pool of past selves and without levels.
        agent_options: replace options of the algorithm, by dotted name.
        env_kwargs: replaces arguments of the environment.

    Raises:
        UserError: If a part of the agent, or its environment where `env` is None, cannot be imported.
        UserError: If the algorithm has no such option.
    """
    saved = metadata.get("experiment", {})
    make, *kinds = constructor(metadata)
    trained: EnvConfig | AnyEnv | None = env
    if trained is None:
        trained = load_function(saved["env"]) if isinstance(saved["env"], str) else from_json(EnvConfig, saved["env"])
    assert trained is not None
    source = make_env(trained)
    run, config = from_json(RunConfig, saved["run"]), _value_of(kinds[0], saved["agent"])
    if agent_options:
        options = nest_options({f"agent.{option}": value for option, value in agent_options.items()})
        config = with_file_options(config, options["agent"], f"options of {_algorithm(metadata)}")
    network = _value_of(kinds[1], saved["network"])
    policies, spec = from_json(PoliciesConfig, saved.get("policies", {})), source.spec()
    levels = saved_levels(metadata)
    if learner_only:
        policies, levels = dataclasses.replace(policies, self_play=SelfPlayConfig()), 0
    defaults = PolicyDefaults(config, network, make, run, spec.rows_per_env)
    own_agents = make_own_agents(policies, defaults)
    agent = rebuild_multi_policy_agent(spec, policies, defaults.make_agent, own_agents, run.num_envs)
    imitation = from_json(ImitationConfig, saved.get("imitation", {}))
    agent = imitating_agent(agent, imitation, spec, load_policy=None)
    agent = with_level_replay(agent, dataclasses.replace(spec, levels=levels), run.level_replay, run.num_envs)
    evaluated = dataclasses.replace(run, eval=dataclasses.replace(run.eval, env_kwargs=env_kwargs))
    return agent, evaluation_source(evaluated, source, trained)


def constructor(metadata: Mapping[str, Any]) -> tuple[Callable[..., AnyAgent], Any, Any]:
    """Returns the function that made a checkpoint's agent, and the types of its configuration and its network.

    Raises:
        UserError: If it is not in the catalog, and not at the top level of a module.
    """
    saved, name = metadata.get("experiment", {}), _algorithm(metadata)
    named = saved.get("make_agent")
    if not {"env", "network", "agent", "run"} <= set(saved) or (named is None and name not in AGENTS):
        raise UserError(
            f"this checkpoint's agent {name!r} was composed in code: call jaxsrl.evaluation.evaluate.evaluate(agent, params, "
            f"make_env) with jaxsrl.checkpoints.store.load_checkpoint instead (known agents: {', '.join(AGENTS)})"
        )
    listed = AGENTS.get(name)
    if named is None and listed is not None:
        return listed.make, listed.config, NetworkConfig
    make = load_function(str(named))
    return make, *constructor_types(make)


def constructor_types(make: Callable[..., AnyAgent]) -> tuple[Any, Any]:
    """Returns the types by which a constructor annotates its configuration and its network; NetworkConfig without one."""
    function = make.func if isinstance(make, functools.partial) else make
    names, hints = list(inspect.signature(make).parameters), get_type_hints(function)
    kinds = [hints.get(name) for name in names]
    return kinds[0] if kinds else None, kinds[2] if len(kinds) > 2 and dataclasses.is_dataclass(
        kinds[2]
    ) else NetworkConfig


def _value_of(kind: Any, data: Any) -> Any:
    if data is None or not isinstance(data, Mapping):
        return data
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise UserError(
            "the function that makes this checkpoint's agent does not annotate its configuration, make(config: MyConfig, spec, "
            "network): annotate it, or call it in Python and use jaxsrl.checkpoints.store.load_checkpoint"
        )
    return from_json(kind, data)


def _algorithm(metadata: Mapping[str, Any]) -> str:
    # Policies of several algorithms have a joint name; the experiment's own algorithm is saved too.
    return metadata.get("algorithm") or metadata.get("agent_name", "")


def counted_agents(metadata: Mapping[str, Any]) -> str:
    """Returns the pattern of the agents whose return counts in a saved run (`--eval.agents`), from a checkpoint's metadata."""
    return _eval_options(metadata).get("agents", ALL_AGENTS)


def evaluation_kwargs(metadata: Mapping[str, Any]) -> str:
    """Returns the arguments of the environment in a saved run's evaluations (`--eval.env-kwargs`), a JSON object."""
    return _eval_options(metadata).get("env_kwargs", "{}")


def saved_options(metadata: Mapping[str, Any]) -> RunConfig | None:
    """Returns the configuration of a saved run, from a checkpoint's metadata; None if it has none."""
    saved = metadata.get("experiment", {}).get("run")
    return None if saved is None else from_json(RunConfig, saved)


def _eval_options(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return metadata.get("experiment", {}).get("run", {}).get("eval", {})
