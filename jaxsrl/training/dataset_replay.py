"""Datasets as experience of an agent: whether they fit it, and its samples from them."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from agents.api import EPISODE_STEP, RETURN_TO_GO, AnyAgent, Replay, ReplayAgent, Trajectory
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, describe_leaves, num_frames
from envpool_bridge.spec.tree import items, leaves, shown_path
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.config.parts import DatasetConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.datasets.compare import same_bounds, same_values
from jaxsrl.datasets.dataset import Dataset, open_dataset
from jaxsrl.datasets.hindsight import episode_values, with_last_step
from jaxsrl.datasets.manifest import read_manifest
from jaxsrl.plan.passes.replay import replays_on_host
from jaxsrl.plan.plan import Plan
from jaxsrl.replay.fixed import FixedReplayClient, choose_num_joined
from jaxsrl.replay.sizes import is_recurrent


def check_dataset(config: RunConfig, plan: Plan, agent: AnyAgent, spec: EnvSpec) -> None:
    """Rejects a dataset that the plan has no place for, or that does not fit; and a target that no episode can reach.

    Raises:
        UserError: says what was expected.
        CorruptDatasetError: If a file is missing.
    """
    if isinstance(agent, ReplayAgent) and agent.data.whole_episodes and not plan.is_offline:
        raise UserError(
            f"agent {agent.name} learns from whole recorded episodes: use --plan offline with --dataset.path DIRECTORY instead of "
            f"plan {plan.name}"
        )
    if plan.is_offline and config.target_return is not None and not config.eval.every:
        raise UserError(
            f"run.target_return {config.target_return:g}: plan offline has no episodes but those of evaluations: use --eval.every "
            f"{10 * config.dataset.gradient_steps_per_update} with it (gradient steps)"
        )
    if not config.dataset.path:
        if plan.is_offline:
            raise UserError(
                f"plan {plan.name} learns from a dataset: use --dataset.path DIRECTORY with it (jaxsrl record makes one)"
            )
        return
    if plan.is_offline and isinstance(agent, ReplayAgent) and agent.data.config.priority_exponent:
        raise UserError(
            f"plan {plan.name} samples a dataset uniformly: expected agent.replay.priority_exponent 0, got "
            f"{agent.data.config.priority_exponent}; use 0"
        )
    if not plan.is_offline and (not replays_on_host(plan) or plan.environments.nodes or config.distributed.is_on):
        raise UserError(
            f"plan {plan.name}: a dataset is read by one learner process with replay in its host's memory: use --plan offline, or "
            f"--replay.memory host without a cluster"
        )
    open_for_agent(Path(config.dataset.path), agent, spec)


def open_for_agent(path: Path, agent: AnyAgent, spec: EnvSpec) -> Dataset:
    """Opens a dataset to train an agent with.

    Args:
        path: directory.
        agent: Agent for stacked frames or single ones.
        spec: Specification of the run's environments.

    Raises:
        UserError: If the agent does not learn from replay, has a recurrent state or needs values that are not in the dataset, or
            the environments differ.
        CorruptDatasetError: If a file is missing.
    """
    if not isinstance(agent, ReplayAgent):
        raise UserError(f"a dataset is for agents that learn from replay: {agent.name} does not; use another algorithm")
    dataset = with_last_step(open_dataset(path), spec)
    if not agent.data.whole_episodes and is_recurrent(agent.initial_agent_state(1)):
        raise UserError(
            f"a dataset has no recurrent states, which agent {agent.name} needs: use a network without a core"
        )
    recorded = dataset.manifest.spec
    for part in ("observation", "action"):
        own, other = getattr(spec, part), getattr(recorded, part)
        if not same_values(own, other):
            raise UserError(
                f"dataset {path}: expected the {part} of {spec.env_id}, {describe_leaves(part, own)}: got "
                f"{describe_leaves(part, other)} of {recorded.env_id}"
            )
    _validate_bounds(path, spec, recorded)
    given = {RETURN_TO_GO, EPISODE_STEP} if agent.data.whole_episodes else set()
    wanted, extras = set(agent.extras) - given, dataset.manifest.extras
    missing = sorted(wanted - set(extras))
    if missing:
        raise UserError(
            f"agent {agent.name} learns from {', '.join(missing)} of each step, which {path} does not have: record it with this "
            f"algorithm, or use another one"
        )
    for name in sorted(wanted):
        own, other = agent.extras[name], extras[name]
        if (own.dtype, own.shape) != (other.dtype, other.shape):
            raise UserError(
                f"agent {agent.name} learns from {name} of each step: expected {own.dtype} {own.shape}, got {other.dtype} "
                f"{other.shape} in {path}: record it with this algorithm, or use another one"
            )
    return dataset


def describe_other_environment(config: DatasetConfig, spec: EnvSpec) -> str:
    """Returns a line if the dataset is known to be of an environment with another id than the run's, "" otherwise."""
    if not config.path:
        return ""
    manifest = read_manifest(Path(config.path))
    recorded = manifest.spec.env_id
    if recorded == spec.env_id or not (manifest.env or {}).get("id"):  # converted files may lack the environment
        return ""
    return (
        f"warning: dataset {config.path} is of {recorded}: its rewards may be those of another task than {spec.env_id}"
    )


def _validate_bounds(path: Path, spec: EnvSpec, recorded: EnvSpec) -> None:
    for (keys, own), other in zip(items(spec.action), leaves(recorded.action), strict=True):
        if isinstance(own, ArraySpec) and not same_bounds(own, other):
            # Agents scale actions to these bounds.
            raise UserError(
                f"dataset {path}: expected {shown_path('action', keys)} between {own.low} and {own.high} as in {spec.env_id}: got "
                f"{other.low} to {other.high} of {recorded.env_id}; train in an environment with the bounds of the dataset"
            )


def make_fixed_client(
    config: DatasetConfig,
    replay: Replay,
    agent: ReplayAgent,
    spec: EnvSpec,
    timeout_seconds: float,
    joins: bool = False,
) -> FixedReplayClient:
    """Returns a client that samples from a dataset, whose steps have the policy version 0.

    Args:
        config: names a dataset that `open_for_agent` accepted.
        replay: Replay of the agent, or `fixed_replay` for a share of its samples.
        agent: Agent for single frames.
        spec: Specification of the run's environments.
        timeout_seconds: Limit of waits for a sample.
        joins: whether the client joins samples, as many as `fixed.choose_num_joined` returns.

    Raises:
        UserError: If the dataset has no window for this agent.
    """
    dataset = with_last_step(open_dataset(Path(config.path)), spec)
    rows, steps = dataset.manifest.num_rows, _num_usable_steps(dataset, replay, spec)
    shapes = trajectory_shapes(agent, spec, rows, steps)
    state = jax.device_get(agent.initial_agent_state(rows))
    known = dict(dataset.steps.extras)
    if agent.data.whole_episodes:
        known |= episode_values(dataset.steps)
        # Its update reads the whole context from the window.
        shapes, state = dataclasses.replace(shapes, agent_state=()), ()
    extras = {name: known[name] for name in agent.extras}
    # The versions of the run that recorded the steps say nothing of this run's: its steps are older than its first update.
    versions = np.broadcast_to(np.int32(0), dataset.steps.policy_version.shape)
    recorded = dataclasses.replace(dataset.steps, extras=extras, agent_state=state, policy_version=versions)
    # Views of whole files; a file has a few steps more than can be used.
    arrays: Trajectory = jax.tree.map(lambda leaf, shape: np.asarray(leaf)[: shape.shape[0]], recorded, shapes)
    num_samples = config.gradient_steps_per_update
    joined = choose_num_joined(num_samples, replay, shapes) if joins else 1
    return FixedReplayClient(replay, shapes, arrays, num_samples, timeout_seconds, joined)


def own_replay(replay: Replay, config: DatasetConfig) -> Replay:
    """Returns the replay of a run's own experience. With a dataset its samples are smaller."""
    if not config.path:
        return replay
    return _with_batch_size(replay, replay.config.batch_size - num_fixed_windows(replay, config))


def fixed_replay(replay: Replay, config: DatasetConfig) -> Replay:
    """Returns the replay of the share of every sample that is from the dataset."""
    return _with_batch_size(replay, num_fixed_windows(replay, config))


def num_fixed_windows(replay: Replay, config: DatasetConfig) -> int:
    """Returns the number of windows of a sample that are from the dataset.

    Raises:
        UserError: If a sample has one window, which cannot be shared.
    """
    size = replay.config.batch_size
    if size < 2:
        raise UserError(
            "a sample of one window cannot be shared with a dataset: use --agent.replay.batch-size 2 or more"
        )
    return min(size - 1, max(1, round(config.share * size)))


def _with_batch_size(replay: Replay, size: int) -> Replay:
    return dataclasses.replace(replay, config=dataclasses.replace(replay.config, batch_size=size))


def _num_usable_steps(dataset: Dataset, replay: Replay, spec: EnvSpec) -> int:
    """Returns the number of steps of a row such that history of frames fits, and windows start at multiples of the stride."""
    steps = dataset.manifest.num_steps - (num_frames(spec) - 1)
    stride = replay.stride if replay.window_start == "any" else 1
    return max(0, steps // stride * stride)
