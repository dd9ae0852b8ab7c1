"""Mapping of policies to agents, and frozen policies, as plain data for command lines and checkpoints."""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.api import AnyAgent, Params
from agents.catalog import AGENTS, fill_sizes, find_algorithm, find_make_agent
from agents.networks.config import NetworkConfig
from agents.transforms.multi_policy import MakeAgent, agent_indices, make_policies, policy_spec
from agents.transforms.self_play import SelfPlayConfig, make_self_play
from envpool_bridge.envs.json_arguments import json_text
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.names import LEARNER
from jaxsrl.checkpoints.store import CorruptCheckpointError, unflatten
from jaxsrl.config.files import with_file_options
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import from_json, to_json
from jaxsrl.runs.read_checkpoint import read_saved_run


@dataclasses.dataclass(frozen=True)
class PoliciesConfig:
    """Policies of a multi-agent environment; by default one acts for all agents.

    Attributes:
        mapping: names of policies by names of agents, or patterns of them; the first match counts: adversary_*=hunters *=prey. In
            the forms of `EnvConfig.kwargs`, as the others.
        frozen: sources of the parameters of policies that do not learn, by name: a run directory (its newest checkpoint) or a
            checkpoint. A run with several policies provides the one of the same name, any other run its only policy:
            prey=runs/prey. A resumed run has them in its own checkpoint, but the path must still exist.
        agents: settings of policies, by name, that differ from the experiment's agent: 'prey={"learning_rate": 1e-3}'.
            With "algorithm", the name of one, they differ from its defaults. "network" has settings of the network. In code
            also a mapping to configurations, {"prey": DQNConfig(...)}, which is stored as JSON.
        networks: Settings of each policy that differ from the experiment's network, or a mapping to values of NetworkConfig.
        self_play: pool of past selves that the policies of a game of two teams play against.
    """

    mapping: Any = "{}"
    frozen: Any = "{}"
    agents: Any = "{}"
    networks: Any = "{}"
    self_play: SelfPlayConfig = dataclasses.field(default_factory=SelfPlayConfig)

    def __post_init__(self) -> None:
        converters = {"agents": _agent_to_json, "networks": _network_to_json}
        for name in ("mapping", "frozen", *converters):
            value = getattr(self, name)
            if name in converters and isinstance(value, Mapping):
                value = {policy: converters[name](policy, config) for policy, config in value.items()}
            object.__setattr__(self, name, json_text(value, f"policies.{name}"))
        self.policy_of_agent()
        self.frozen_paths()
        self.agent_options()
        self.network_options()

    def policy_of_agent(self) -> dict[str, str]:
        """Parses `mapping`. Raises UserError if it is not a JSON object of strings."""
        return _parse("policies.mapping", self.mapping, str, '{"adversary_*": "hunters", "*": "prey"}')

    def frozen_paths(self) -> dict[str, str]:
        """Parses `frozen`. Raises UserError if it is not a JSON object of strings."""
        return _parse("policies.frozen", self.frozen, str, '{"prey": "runs/prey"}')

    def agent_options(self) -> dict[str, dict[str, Any]]:
        """Parses `agents`. Raises UserError if it is not a JSON object of objects, or names no known algorithm."""
        options = _parse("policies.agents", self.agents, dict, '{"prey": {"algorithm": "dqn", "learning_rate": 1e-3}}')
        for policy, entry in options.items():
            algorithm = entry.get("algorithm")
            if algorithm is not None and algorithm not in AGENTS:
                raise UserError(
                    f"policy {policy!r}: unknown algorithm {algorithm!r}: expected one of {', '.join(AGENTS)}"
                )
        return options

    def network_options(self) -> dict[str, dict[str, Any]]:
        """Parses `networks`. Raises UserError if it is not a JSON object of objects."""
        return _parse("policies.networks", self.networks, dict, '{"prey": {"hidden_sizes": [64]}}')


@dataclasses.dataclass(frozen=True)
class PolicyDefaults:
    """Experiment's settings, which those of a policy replace.

    Attributes:
        agent: configuration of the algorithm.
        network: configuration of the network.
        make: called with (agent, spec, network).
        run: Run whose sizes fill fields of the agent.
        rows_per_env: agents of an environment.
    """

    agent: Any
    network: Any
    make: Callable[..., AnyAgent]
    run: RunConfig
    rows_per_env: int

    def make_agent(self, spec: EnvSpec) -> AnyAgent:
        """Returns the agent for the rows of one policy."""
        run = self.run
        num_rows = run.num_envs * spec.rows_per_env // self.rows_per_env
        # Its updates are counted before their gradient steps: the last steps would have the rate of the schedule's end.
        total = run.num_updates + 1 if run.is_offline else run.num_updates
        config = fill_sizes(self.agent, total, run.rollout_length, num_rows)
        return self.make(config, spec, self.network)


def make_own_agents(policies: PoliciesConfig, defaults: PolicyDefaults) -> dict[str, MakeAgent]:
    """Returns the constructors of the policies that have settings of their own.

    Raises:
        UserError: If a setting is unknown, or its value has another type.
    """
    agents, networks = policies.agent_options(), policies.network_options()
    makers: dict[str, MakeAgent] = {}
    for policy in sorted({*agents, *networks}):
        options, own = dict(agents.get(policy, {})), defaults
        network = {**options.pop("network", {}), **networks.get(policy, {})}
        algorithm = options.pop("algorithm", None)
        if algorithm is not None:
            own = dataclasses.replace(own, agent=AGENTS[algorithm].config(), make=AGENTS[algorithm].make)
        agent = with_file_options(own.agent, options, f"policies.agents.{policy}") if options else own.agent
        if network:
            base = own.network if isinstance(own.network, NetworkConfig) else NetworkConfig()
            own = dataclasses.replace(own, network=with_file_options(base, network, f"policies.networks.{policy}"))
        makers[policy] = dataclasses.replace(own, agent=agent).make_agent
    return makers


def make_multi_policy_agent(
    spec: EnvSpec,
    policies: PoliciesConfig,
    make_agent: MakeAgent,
    own_agents: Mapping[str, MakeAgent] | None = None,
    num_rows: int = 0,
) -> AnyAgent:
    """Returns the agent of an experiment: `make_agent` once per policy, with parameters of another run for frozen ones.

    Args:
        spec: spec of the environments' rows.
        policies: mapping of policies to agents.
        make_agent: makes the algorithm of one policy from the spec of its rows.
        own_agents: Agents from `make_own_agents`.
        num_rows: rows of the run, which self-play divides.

    Raises:
        UserError: If an agent without a policy, a pattern without an agent, or a frozen policy without an agent.
        UserError: self-play as in `make_self_play`.
        UserError: parameters that are missing, damaged, or of another network.
    """
    mapping, paths = policies.policy_of_agent(), policies.frozen_paths()
    # Validates the mapping before files are read.
    agent = make_policies(spec, mapping, make_agent, dict.fromkeys(paths), own_agents)
    if paths:
        places = agent_indices(spec, mapping)
        frozen: dict[str, Params] = {}
        for name, path in paths.items():
            template = (own_agents or {}).get(name, make_agent)(policy_spec(spec, places[name]))
            frozen[name] = load_policy_params(template, name, Path(path))
        agent = make_policies(spec, mapping, make_agent, frozen, own_agents)
    if not policies.self_play.slots:
        return agent
    members = [
        load_policy_params(agent, f"self_play.members[{number}]", Path(path), set(mapping.values()))
        for number, path in enumerate(policies.self_play.members)
    ]
    return make_self_play(agent, spec, policies.self_play, num_rows, members)


def rebuild_multi_policy_agent(
    spec: EnvSpec,
    policies: PoliciesConfig,
    make_agent: MakeAgent,
    own_agents: Mapping[str, MakeAgent] | None = None,
    num_rows: int = 0,
) -> AnyAgent:
    """Returns the agent of `make_multi_policy_agent` for parameters of the run's own checkpoint; frozen ones are not loaded."""
    frozen = dict.fromkeys(policies.frozen_paths())
    agent = make_policies(spec, policies.policy_of_agent(), make_agent, frozen, own_agents)
    return make_self_play(agent, spec, policies.self_play, num_rows) if policies.self_play.slots else agent


def load_policy_params(agent: AnyAgent, policy: str, path: Path, all_of: Collection[str] = ()) -> Params:
    """Loads the parameters of one policy of a run, or of all its policies.

    Args:
        agent: agent that will use them.
        policy: name of the policy; ignored for a run with a single policy, and only for messages if all are loaded.
        path: run directory or checkpoint.
        all_of: names of the policies of an agent of several, which the run must have; () for an agent of one policy.

    Raises:
        UserError: If there is no intact checkpoint, the run has other policies, or its parameters have other shapes.
    """
    try:
        saved = read_saved_run(path)
    except CorruptCheckpointError as error:
        raise UserError(f"frozen policy {policy!r}: damaged checkpoint {error}") from error
    except UserError as error:
        raise UserError(f"frozen policy {policy!r}: {error}") from error
    policies = saved_policies(saved.metadata)
    names = sorted(set(policies.policy_of_agent().values()))
    if names and not all_of and policy not in names:
        raise UserError(f"frozen policy {policy!r}: {path} has policies {', '.join(names)}: expected one of that name")
    if all_of and names != sorted(all_of):
        raise UserError(
            f"frozen policy {policy!r}: {path} has {'policies ' + ', '.join(names) if names else 'one policy for all'}: "
            f"expected policies {', '.join(sorted(all_of))}"
        )
    part = ["learner"] if policies.self_play.slots or saved_levels(saved.metadata) else []
    part += [policy] if names and not all_of else []
    prefix = f"{LEARNER}.params" + jax.tree_util.keystr(tuple(map(jax.tree_util.DictKey, part)))
    template = jax.eval_shape(agent.init, jax.random.key(0)).params
    template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)
    try:
        return unflatten(template, saved.arrays, prefix)
    except UserError as error:
        raise UserError(
            f"frozen policy {policy!r} cannot use the parameters of {saved.checkpoint}: expected those of {agent.name} with "
            f"the same network, for agents that see and do the same: {error}"
        ) from error


def saved_levels(metadata: Mapping[str, Any]) -> int:
    """Returns the number of levels of a saved run's environments, from the metadata of a checkpoint."""
    return metadata.get("env_spec", {}).get("levels", 0)


def saved_policies(metadata: Mapping[str, Any]) -> PoliciesConfig:
    """Returns the policies of a saved run, from the metadata of a checkpoint."""
    return from_json(PoliciesConfig, metadata.get("experiment", {}).get("policies") or {})


def _agent_to_json(policy: str, config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return to_json(config)
    find_make_agent(config)  # rejects what is no algorithm's
    options = {"algorithm": find_algorithm(config), **to_json(config)}
    _validate_is_data(policy, config, options)
    return options


def _network_to_json(policy: str, config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return to_json(config)
    if not isinstance(config, NetworkConfig):
        raise UserError(f"policies.networks: expected a NetworkConfig for policy {policy!r}, got {config!r}")
    _validate_is_data(policy, config, to_json(config))
    return to_json(config)


def _validate_is_data(policy: str, config: Any, options: Mapping[str, Any]) -> None:
    """Raises a UserError if a configuration contains a function, which JSON would lose."""
    options = {name: value for name, value in options.items() if name != "algorithm"}
    if with_file_options(type(config)(), json.loads(json.dumps(options)), f"policy {policy!r}") != config:
        raise UserError(
            f"policy {policy!r}: the configuration has parts that are not data, such as a function: {config!r}"
        )


def _parse(name: str, text: str, kind: type[Any], example: str) -> dict[str, Any]:
    expected = f"{name} must be a JSON object of {'strings' if kind is str else 'objects'}, such as {example}"
    names = json.loads(text)
    if not all(isinstance(value, kind) for value in names.values()):
        raise UserError(f"{expected}: got {text!r}")
    return names
