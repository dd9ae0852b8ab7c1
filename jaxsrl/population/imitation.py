"""Imitation of a recorded expert: its settings, and the demonstrations from a dataset."""

import dataclasses
from pathlib import Path

import numpy as np

from agents.api import AnyAgent
from agents.transforms.imitation import Demonstrations, GAILConfig, with_imitation
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec, spec_to_dict
from envpool_bridge.spec.tree import leaves, map_leaves
from jaxsrl.datasets.dataset import open_dataset

_MAX_BYTES = 64 * 2**20  # they are a constant of the compiled update


@dataclasses.dataclass(frozen=True)
class ImitationConfig(GAILConfig):
    """Settings of GAIL.

    Attributes:
        demonstrations: directory of a dataset, whose steps the policy imitates; "" for the rewards of the environment.
    """

    demonstrations: str = ""


def imitating_agent(agent: AnyAgent, config: ImitationConfig, spec: EnvSpec, only_acts: bool = False) -> AnyAgent:
    """Returns the agent that imitates the demonstrations, or the agent itself where there are none.

    Args:
        agent: of the experiment.
        config: settings.
        spec: of the environments.
        only_acts: whether the agent is loaded to act, without demonstrations.

    Raises:
        UserError: the demonstrations are of another environment or too large, or see `with_imitation`.
        CorruptDatasetError: a file of the dataset is damaged.
    """
    if not config.demonstrations:
        return agent
    expert = None if only_acts else load_demonstrations(Path(config.demonstrations), spec)
    return with_imitation(agent, config, spec, expert)  # pyright: ignore[reportArgumentType]  rejects others


def load_demonstrations(path: Path, spec: EnvSpec) -> Demonstrations:
    """Returns all env steps of a dataset; raises UserError as `imitating_agent` does."""
    dataset = open_dataset(path)
    own, recorded = spec_to_dict(spec), spec_to_dict(dataset.manifest.spec)
    if any(own[part] != recorded[part] for part in ("observation", "action")):
        raise UserError(
            f"{path} has another observation or action than {spec.env_id}: expected demonstrations in this environment, got those "
            f"in {dataset.manifest.spec.env_id}"
        )
    steps = dataset.steps
    valid = np.asarray(steps.valid)
    observation = map_leaves(lambda leaf: np.asarray(leaf[:-1])[valid], steps.observation)
    action = map_leaves(lambda leaf: np.asarray(leaf)[valid], steps.action)
    demonstrations = Demonstrations(observation, action)
    size = sum(leaf.nbytes for part in demonstrations for leaf in leaves(part))
    if size > _MAX_BYTES:
        raise UserError(
            f"{path}: demonstrations are a part of the compiled update: expected at most {_MAX_BYTES / 2**20:.0f} MiB, got "
            f"{size / 2**20:.0f}; jaxsrl dataset merge {path} --best 0.1 --out SMALLER takes the best episodes"
        )
    return demonstrations
