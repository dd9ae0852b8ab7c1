"""An agent, its parameters and its environment from what a run left."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from agents.api import AnyAgent, Params
from agents.catalog import AGENT_CONFIGS, AGENTS
from agents.networks.config import NetworkConfig
from envpool_bridge.adapters.environment import EnvConfig
from envpool_bridge.adapters.rows import EnvSource
from envpool_bridge.errors import UserError
from jaxsrl.config import RunConfig, from_json
from jaxsrl.environments import source_of
from jaxsrl.inline_dispatch import dispatch_inline
from jaxsrl.partial_restore import in_words, what_fits
from jaxsrl.policies_config import PoliciesConfig, remade_agent
from jaxsrl.runtime.progress import LEARNER, restore_state, state_to_arrays
from jaxsrl.saved_run import read_saved_run


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds, ready to play.

    Attributes:
        agent: made from the saved configuration.
        params: of the checkpoint.
        source: of the environments it was trained in.
        checkpoint: its directory.
        update: it was made at.
        run_directory: it belongs to; None for a checkpoint that was copied elsewhere.
        problems: what is wrong with newer checkpoints of the run.
        left_out: what did not fit, in words; "" if all did.
    """

    agent: AnyAgent
    params: Params
    source: EnvSource
    checkpoint: Path
    update: int
    run_directory: Path | None
    problems: tuple[str, ...] = ()
    left_out: str = ""


def load_agent(path: Path, partial: bool = False) -> Loaded:
    """Loads a run directory's newest good checkpoint, or one checkpoint directory.

    Args:
        path: of it.
        partial: take what fits where not all does; what does not is in `left_out`, and is as it begins.

    Raises:
        UserError: the path is neither, or was saved by something that is not in the catalogue.
        DamagedCheckpointError: the one checkpoint asked for is damaged.
    """
    dispatch_inline()
    saved = read_saved_run(path)
    agent, source = rebuild(saved.metadata)
    arrays, said = saved.arrays, ""
    if partial:
        arrays, left_out = what_fits(arrays, state_to_arrays(agent.init(jax.random.key(0)), with_replay=False), LEARNER)
        said = in_words(arrays, left_out) if left_out else ""
    state = restore_state(agent, jax.random.key(0), arrays)
    update = int(state.num_updates)
    return Loaded(agent, state.params, source, saved.checkpoint, update, saved.run_directory, saved.problems, said)


def rebuild(metadata: dict[str, Any]) -> tuple[AnyAgent, EnvSource]:
    """The agent and the environments that a checkpoint's metadata describe; of several policies, if it has them.

    Raises:
        UserError: the agent is not in the catalogue, or the experiment had other parts than the usual ones.
    """
    name, saved = metadata.get("agent_name"), metadata.get("experiment", {})
    if name not in AGENTS or not {"env", "network", "agent", "run"} <= set(saved):
        raise UserError(
            f"this checkpoint's agent {name!r} was composed in code: call jaxsrl.evaluate.evaluate(agent, params, "
            f"make_env) with jaxsrl.checkpoint.load_checkpoint instead (known agents: {', '.join(AGENTS)})"
        )
    source = source_of(from_json(EnvConfig, saved["env"]))
    config = from_json(AGENT_CONFIGS[name], saved["agent"])
    config = dataclasses.replace(config, total_updates=from_json(RunConfig, saved["run"]).num_updates)
    network = from_json(NetworkConfig, saved["network"])
    policies = from_json(PoliciesConfig, saved.get("policies", {}))
    return remade_agent(source.spec(), policies, lambda spec: AGENTS[name](config, spec, network)), source
