"""Recording of a dataset: whole episodes of fixed parameters, or of random actions."""

import dataclasses
import itertools
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import ActFn, Action, AgentState, AnyAgent, Array, Mode, Observation, Params, Trajectory
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.envs.protocol import EnvRows, EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import leaves, lookup, map_leaves, take, unflatten
from jaxsrl.collect.inference.act import make_act
from jaxsrl.datasets.dataset import Dataset, open_dataset
from jaxsrl.datasets.episodes import episode_steps
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import DatasetWriter, make_dataset
from jaxsrl.evaluation.evaluate import episode_limit, on_one_device
from jaxsrl.evaluation.player import RowsPlayer
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch


@dataclasses.dataclass(frozen=True)
class RecordConfig:
    """Length and behavior of a recording.

    Attributes:
        episodes: number of episodes; 0 for as many as `env_steps` needs.
        env_steps: least number of env steps of whole episodes; 0 for as many as `episodes` have. The episodes that are in
            progress when they are reached are recorded to their ends, so that there may be many more steps.
        epsilon: probability of a random action at each step.
        mode: how the policy chooses its actions.
        seed: Seed of environments and actions.
        max_rows: environments in parallel.
        max_episode_steps: env steps after which an episode is truncated; None for that of an evaluation.
    """

    episodes: int = 0
    env_steps: int = 0
    epsilon: float = 0.0
    mode: Mode = Mode.GREEDY
    seed: int = 0
    max_rows: int = 32
    max_episode_steps: int | None = None

    def __post_init__(self) -> None:
        if min(self.episodes, self.env_steps) < 0 or bool(self.episodes) == bool(self.env_steps):
            raise UserError(
                f"a recording has a number of episodes or of env steps: got {self.episodes} and {self.env_steps}"
            )
        if not 0.0 <= self.epsilon <= 1.0:
            raise UserError(f"epsilon is a probability: got {self.epsilon}")
        if self.max_rows < 1 or self.seed < 0:
            raise UserError(f"expected at least one row and a seed from 0: got {self.max_rows} and {self.seed}")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise UserError(f"max_episode_steps must be at least 1: got {self.max_episode_steps}")


def record(
    agent: AnyAgent,
    params: Params,
    source: EnvSource,
    out: Path,
    config: RecordConfig,
    env: dict[str, Any] | None = None,
    origin: dict[str, Any] | None = None,
) -> Dataset:
    """Plays whole episodes and writes them into one row of a dataset; the same arguments give the same files.

    Args:
        agent: agent whose `act` is called.
        params: parameters of the agent.
        source: Source of environments, as in training.
        out: directory to create.
        config: length and behavior.
        env: configuration of the environment as JSON data, for the manifest.
        origin: Name of the acting policy, for the manifest.

    Raises:
        UserError: `out` has files, or the environment has several agents.
    """
    use_synchronous_cpu_dispatch()
    spec = source.spec()
    if spec.agents:
        raise UserError(f"{spec.env_id} has several agents, whose episodes are not recorded: use --run.record of a run")
    stacked = with_stacked_frames(agent, spec)
    if config.epsilon:
        stacked = stacked._replace(act=with_random_actions(stacked.act, spec, config.epsilon))
    description = {**(origin or {}), "epsilon": config.epsilon, "mode": config.mode.value, "seed": config.seed}
    if (limit := episode_limit(spec, config.max_episode_steps)) is not None:
        description["max_episode_steps"] = limit
    num_rows = min(config.max_rows, config.episodes or config.max_rows)
    with make_dataset(out, Manifest(spec, 1, dict(agent.extras), env=env, origin=description)) as writer:
        seed = _recording_seed(config.seed)
        rows = source.make_rows(range(num_rows), seed, False)
        try:
            player = RowsPlayer(stacked, make_act(stacked, config.mode), on_one_device(params), spec, seed, num_rows)
            _record_episodes(player, rows, writer, config, limit)
        finally:
            rows.close()
    return open_dataset(out)


def _recording_seed(seed: int) -> int:
    # Agents that learn from the episodes are evaluated in other ones.
    return int(np.random.SeedSequence((seed, 0xDA7A)).generate_state(1)[0])


class _Step(NamedTuple):
    """Copies of one step of all rows, [R, ...] each leaf."""

    observation: Observation
    action: Action
    reward: np.ndarray
    extras: dict[str, np.ndarray]


def _record_episodes(
    player: RowsPlayer, rows: EnvRows, writer: DatasetWriter, config: RecordConfig, limit: int | None
) -> None:
    """Writes each episode when it ends. Short episodes are not preferred.

    Of a number of episodes every row plays its share. When there are enough env steps, every row plays its episode to the end.
    From the first episode that the limit truncates on, rows idle after their episodes until all do. Then all start the next ones.
    """
    player.start(rows)
    wanted = np.array([len(range(row, config.episodes, rows.num_rows)) for row in range(rows.num_rows)])
    if config.env_steps:
        wanted[:] = 1  # until there are enough steps
    steps: deque[_Step] = deque()
    begins, episodes = np.zeros(rows.num_rows, int), np.zeros(rows.num_rows, int)
    idles = np.zeros(rows.num_rows, bool)
    num_steps = num_recorded = 0
    while wanted.any():
        if idles[wanted > 0].all():
            episodes += 1
            idles[:], begins[:] = False, num_steps
            player.start(rows, episodes.tolist())
        out = player.step(rows)
        steps.append(_copy_step(player))
        num_steps += 1
        plays = (wanted > 0) & ~idles
        cut = plays & ~(out.terminated | out.truncated) & (num_steps - begins == (limit or 0))
        ended = plays & (out.terminated | out.truncated | cut)
        for row in np.flatnonzero(ended):
            length, ends = (
                num_steps - int(begins[row]),
                (bool(out.terminated[row]), bool(out.truncated[row] | cut[row])),
            )
            played = list(itertools.islice(steps, len(steps) - length, None))
            writer.append(_episode(played, out.observation, int(row), ends))
            num_recorded += length
        if num_recorded >= config.env_steps:
            wanted[ended] -= 1
            wanted[idles] *= not config.env_steps  # their episodes are whole
        idles |= ended & (cut.any() | idles.any())
        episodes += out.is_first & ~out.valid
        begins[out.is_first | idles] = num_steps
        while len(steps) > num_steps - begins.min():
            steps.popleft()


def _copy_step(player: RowsPlayer) -> _Step:
    slot, t = player.slot, player.newest
    observation, action = (map_leaves(np.copy, take(tree, t)) for tree in (slot.observation, slot.action))
    return _Step(observation, action, slot.reward[t].copy(), {name: x[t].copy() for name, x in slot.extras.items()})


def _episode(steps: list[_Step], final: Observation, row: int, ends: tuple[bool, bool]) -> Trajectory:
    """Returns the steps of one row as an episode, with its final observation and flags of termination and truncation."""

    def of_row(*arrays: np.ndarray) -> np.ndarray:
        return np.stack([array[row] for array in arrays])

    observation = map_leaves(of_row, *[step.observation for step in steps], final)
    action = map_leaves(of_row, *[step.action for step in steps])
    reward = of_row(*[step.reward for step in steps])
    extras = {name: of_row(*[step.extras[name] for step in steps]) for name in steps[0].extras}
    return episode_steps(observation, action, reward, ends, extras)


def with_random_actions(act: ActFn, spec: EnvSpec, epsilon: float) -> ActFn:
    """Returns an `act` that takes uniformly random legal actions with this probability.

    Args:
        act: Act of an agent, for stacked frames or single ones.
        spec: Specification of the environments.
        epsilon: probability, for each row and step.
    """

    def mixed(
        params: Params, observation: Observation, agent_state: AgentState, is_first: Array, keys: Array, mode: Mode
    ) -> tuple[Action, dict[str, Array], AgentState]:
        own_keys = jax.vmap(partial(jax.random.split, num=3))(keys)
        action, extras, agent_state = act(params, observation, agent_state, is_first, own_keys[:, 0], mode)
        is_random = jax.vmap(jax.random.uniform)(own_keys[:, 1]) < epsilon
        random = _random_actions(spec, observation, own_keys[:, 2])

        def select(one: Array, other: Array) -> Array:
            return jnp.where(is_random.reshape(-1, *[1] * (one.ndim - 1)), one, other)

        return jax.tree.map(select, random, action), extras, agent_state

    return mixed


def _random_actions(spec: EnvSpec, observation: Observation, keys: Array) -> Action:
    """Returns an action for each row, each leaf [R, ...]."""
    action_leaves = leaves(spec.action)
    each = jax.vmap(partial(jax.random.split, num=len(action_leaves)))(keys)
    mask = lookup(observation, spec.action_mask) if spec.action_mask else None
    values = [_random_leaf(leaf, each[:, number], mask) for number, leaf in enumerate(action_leaves)]
    return unflatten(spec.action, values)


def _random_leaf(leaf: LeafSpec, keys: Array, mask: Array | None) -> Array:
    if isinstance(leaf, ArraySpec):
        return jax.vmap(partial(_random_array, leaf))(keys)
    sizes = np.array([leaf.num_values]) if isinstance(leaf, DiscreteSpec) else np.array(leaf.num_values)
    if mask is None:
        chosen = jax.vmap(lambda key: jax.random.randint(key, sizes.shape, 0, sizes))(keys)
    else:
        splits = np.cumsum(sizes)[:-1]
        parts = jnp.split(jnp.where(mask > 0, 0.0, -jnp.inf), splits, axis=-1)
        each = jax.vmap(partial(jax.random.split, num=len(sizes)))(keys)
        columns = [jax.vmap(jax.random.categorical)(each[:, number], part) for number, part in enumerate(parts)]
        chosen = jnp.stack(columns, axis=-1)
    return chosen.reshape(-1, *leaf.shape).astype(jnp.int32)


def _random_array(leaf: ArraySpec, key: Array) -> Array:
    """Returns uniform elements between finite bounds, exponential ones from a single finite bound, and normal ones without."""
    low, high = leaf.bound("low"), leaf.bound("high")
    low, high = np.float32(-np.inf if low is None else low), np.float32(np.inf if high is None else high)
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    # Every element is taken from one of these, so that they may share the key.
    exponential, normal = jax.random.exponential(key, leaf.shape), jax.random.normal(key, leaf.shape)
    is_bounded = has_low & has_high
    least, most = np.where(is_bounded, low, 0.0), np.where(is_bounded, high, 1.0)
    uniform = jax.random.uniform(key, leaf.shape, minval=least, maxval=most)
    without_low = jnp.where(has_high, high - exponential, normal)
    return jnp.where(is_bounded, uniform, jnp.where(has_low, low + exponential, without_low))
