"""Mapping of policies to agents, and frozen policies, as plain data for command lines and checkpoints."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.api import AnyAgent, Params
from agents.transforms.multi_policy import MakeAgent, agent_indices, make_policies, policy_spec
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.names import LEARNER
from jaxsrl.checkpoints.store import CorruptCheckpointError, unflatten
from jaxsrl.runs.read_checkpoint import read_saved_run


@dataclasses.dataclass(frozen=True)
class PoliciesConfig:
    """Policies of a multi-agent environment; by default one acts for all agents.

    Attributes:
        mapping: JSON object from names of agents, or patterns of them, to names of policies; the first match counts:
            '{"adversary_*": "hunters", "*": "prey"}'.
        frozen: JSON object from names of policies that do not learn to the source of their parameters: a run directory (its
            newest checkpoint) or a checkpoint. A run with several policies provides the one of the same name, any other run
            its only
            policy: '{"prey": "runs/prey"}'. A resumed run has them in its own checkpoint, but the path must still exist.
    """

    mapping: str = "{}"
    frozen: str = "{}"

    def __post_init__(self) -> None:
        self.policy_of_agent()
        self.frozen_paths()

    def policy_of_agent(self) -> dict[str, str]:
        """Parses `mapping`. Raises UserError if it is not a JSON object of strings."""
        return _strings("policies.mapping", self.mapping, '{"adversary_*": "hunters", "*": "prey"}')

    def frozen_paths(self) -> dict[str, str]:
        """Parses `frozen`. Raises UserError if it is not a JSON object of strings."""
        return _strings("policies.frozen", self.frozen, '{"prey": "runs/prey"}')


def make_multi_policy_agent(spec: EnvSpec, policies: PoliciesConfig, make_agent: MakeAgent) -> AnyAgent:
    """Returns the agent of an experiment: `make_agent` once per policy, with parameters of another run for frozen ones.

    Args:
        spec: spec of the environments' rows.
        policies: mapping of policies to agents.
        make_agent: makes the algorithm of one policy from the spec of its rows.

    Raises:
        UserError: an agent without a policy, a pattern without an agent, or a frozen policy without an agent.
        UserError: parameters that are missing, damaged, or of another network.
    """
    mapping, paths = policies.policy_of_agent(), policies.frozen_paths()
    agent = make_policies(spec, mapping, make_agent, dict.fromkeys(paths))  # validates the mapping before reading files
    if not paths:
        return agent
    places = agent_indices(spec, mapping)
    frozen: dict[str, Params] = {}
    for name, path in paths.items():
        template = make_agent(policy_spec(spec, places[name]))
        frozen[name] = load_policy_params(template, name, Path(path))
    return make_policies(spec, mapping, make_agent, frozen)


def rebuild_multi_policy_agent(spec: EnvSpec, policies: PoliciesConfig, make_agent: MakeAgent) -> AnyAgent:
    """Returns the agent of `make_multi_policy_agent` for parameters of the run's own checkpoint; frozen ones are not loaded."""
    return make_policies(spec, policies.policy_of_agent(), make_agent, dict.fromkeys(policies.frozen_paths()))


def load_policy_params(agent: AnyAgent, policy: str, path: Path) -> Params:
    """Loads the parameters of one policy of a run.

    Args:
        agent: agent that will use them.
        policy: name of the policy; ignored for a run with a single policy.
        path: run directory or checkpoint.

    Raises:
        UserError: there is no intact checkpoint, the run has no such policy, or its parameters have other shapes.
    """
    try:
        saved = read_saved_run(path)
    except CorruptCheckpointError as error:
        raise UserError(f"frozen policy {policy!r}: damaged checkpoint {error}") from error
    except UserError as error:
        raise UserError(f"frozen policy {policy!r}: {error}") from error
    names = _policy_names(saved.metadata)
    if names and policy not in names:
        raise UserError(f"frozen policy {policy!r}: {path} has policies {', '.join(names)}: expected one of that name")
    prefix = f"{LEARNER}.params" + (jax.tree_util.keystr((jax.tree_util.DictKey(policy),)) if names else "")
    template = jax.eval_shape(agent.init, jax.random.key(0)).params
    template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)
    try:
        return unflatten(template, saved.arrays, prefix)
    except UserError as error:
        raise UserError(
            f"frozen policy {policy!r} cannot use the parameters of {saved.checkpoint}: expected those of {agent.name} with "
            f"the same network, for agents that see and do the same: {error}"
        ) from error


def _policy_names(metadata: Mapping[str, Any]) -> list[str]:
    """Returns names of a saved run's policies; [] if it had one for all."""
    saved = metadata.get("experiment", {}).get("policies")
    if not saved:
        return []
    return sorted(set(PoliciesConfig(**saved).policy_of_agent().values()))


def _strings(name: str, text: str, example: str) -> dict[str, str]:
    expected = f"{name} must be a JSON object of strings, such as {example}"
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{expected}: got {text!r} ({error})") from error
    if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
        raise UserError(f"{expected}: got {text!r}")
    return names
