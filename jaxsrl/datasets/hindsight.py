"""Values of recorded steps that other steps of their episodes determine."""

import dataclasses

import numpy as np

from agents.api import EPISODE_STEP, RETURN_TO_GO, Trajectory
from envpool_bridge.envs.last_step import LAST_REWARD
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import is_dict
from jaxsrl.datasets.dataset import Dataset, find_episodes


def episode_values(steps: Trajectory) -> dict[str, np.ndarray]:
    """Returns the return-to-go [S, R] float32 and the number of earlier steps of the episode [S, R] int32.

    The return-to-go is not discounted. It is NaN outside of whole episodes.
    """
    episodes, reward = find_episodes(steps), np.asarray(steps.reward, np.float64) * np.asarray(steps.valid)
    return_to_go, number = np.full(reward.shape, np.nan, np.float32), np.zeros(reward.shape, np.int32)
    for row, begin, end in zip(episodes.row, episodes.begin, episodes.end, strict=True):
        return_to_go[begin:end, row] = np.cumsum(reward[begin:end, row][::-1])[::-1]
        number[begin:end, row] = np.arange(end - begin)
    return {RETURN_TO_GO: return_to_go, EPISODE_STEP: number}


def with_last_step(dataset: Dataset, spec: EnvSpec) -> Dataset:
    """Returns the dataset with the item "last_reward" in its observations where `spec` has it and the dataset does not.

    It is what `--env.last-reward` adds: the reward before, 0 at the first observation of an episode. An observation that is not a
    dict becomes the item "observation".
    """
    own, recorded = spec.observation, dataset.manifest.spec
    if not is_dict(own) or LAST_REWARD not in own:
        return dataset
    steps, before, items = dataset.steps, recorded.observation, dataset.steps.observation
    if not is_dict(before):
        before, items = {"observation": before}, {"observation": items}
    if LAST_REWARD in before:
        return dataset
    reward = np.where(np.asarray(steps.is_first[1:]), 0.0, np.asarray(steps.reward)).astype(np.float32)
    items = {**items, LAST_REWARD: np.concatenate([np.zeros_like(reward[:1]), reward])}
    changed = dataclasses.replace(recorded, observation={**before, LAST_REWARD: own[LAST_REWARD]})
    return dataclasses.replace(
        dataset,
        manifest=dataclasses.replace(dataset.manifest, spec=changed),
        steps=dataclasses.replace(steps, observation=items),
    )
