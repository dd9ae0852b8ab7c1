"""Observation normalization and reward scaling around any agent, as pure functions.

The statistics are part of the parameters and are versioned, published and saved with them. `act` uses the same statistics in
training and evaluation; only updates change them. They get no gradient and are not in the optimizer's state.

An update normalizes observations with the statistics of its parameters, from before its batch. At policy lag 0 these are exactly
the ones that acted, so the probability ratio starts at 1. Its own batch counts from the next version on. Rewards are no input of
the policy: they are scaled with the statistics that include the batch.

With `random_start`, observations are 0 until there are statistics, so the first actions are independent of them: random steps of
the initial policy, with their true log-probabilities. Those steps only initialize the statistics; the agent does not learn from
them.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import (
    Action,
    Agent,
    AgentState,
    Array,
    GradientSteps,
    LearnerState,
    Metrics,
    Mode,
    Observation,
    Params,
    Progress,
    Summary,
    Trajectory,
    UpdateFn,
)
from agents.networks.observation_scale import normalized_leaves
from agents.ops import validate
from agents.ops.return_moments import ReturnBatch, ReturnMoments, init_returns, merge_returns, return_batch
from agents.ops.running_moments import Moments, RunningMoments, batch_moments, deviation, init_moments, merge
from agents.settings import Nested, Unread
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import items, lookup, shown_path, unflatten

_BATCH, _SKIPPED = "normalization/batch", "normalization/random_fraction"
_AGENT, _STATISTICS = "agent", "statistics"


@dataclasses.dataclass(frozen=True)
class NormalizationConfig(Nested):
    """Settings of the normalization.

    `random_start` applies where observations are normalized.

    Attributes:
        observations: Whether every element of the `normalized_leaves` is shifted and scaled to mean 0 and deviation 1.
        rewards: Whether rewards are divided by the deviation of the running discounted return.
        clip_observation: Largest absolute value after normalization, in deviations.
        clip_reward: Largest absolute value after scaling, in deviations of the return.
        epsilon: Added to variances, in their units.
        random_start: Whether the steps of the initial parameters are random and only initialize the statistics. Updates from
            such steps alone change no parameters: the steps of lag + 1 updates are discarded, at most. False: the first
            steps are learned from without normalization.
    """

    observations: bool = False
    rewards: bool = False
    clip_observation: float = 10.0
    clip_reward: float = 10.0
    epsilon: float = 1e-8
    random_start: bool = True

    def __post_init__(self) -> None:
        validate.positive(self, "clip_observation", "clip_reward", "epsilon", prefix="normalization.")

    def unread(self) -> Unread:
        """Returns the rules for fields without effect."""
        yield not self.observations, "observations are not normalized", "clip_observation", "random_start"
        yield not self.rewards, "rewards are not scaled", "clip_reward"
        yield not (self.observations or self.rewards), "nothing is normalized", "epsilon"


class Normalizer:
    """Pure functions of the statistics of one environment."""

    def __init__(self, config: NormalizationConfig, spec: EnvSpec, discount: float) -> None:
        self._config, self._discount = config, discount
        self._random_start = config.observations and config.random_start
        self._leaves = {
            shown_path("observation", path): (path, leaf)
            for path, leaf in (normalized_leaves(spec) if config.observations else ())
        }
        if config.observations and not self._leaves:
            raise UserError(
                f"{spec.env_id}: observations are to be normalized, but their leaves are images, flags, masks or categories; "
                f"use normalization.observations=False"
            )

    def init(self) -> dict[str, Any]:
        """Returns statistics before the first batch, by name: `RunningMoments` of each leaf, and "return" of rewards."""
        statistics: dict[str, Any] = {name: init_moments(leaf.shape) for name, (_, leaf) in self._leaves.items()}
        return statistics | ({"return": init_returns()} if self._config.rewards else {})

    def observation(self, statistics: dict[str, Any], observation: Observation) -> Observation:
        """Returns observations [..., *leaf] normalized; other leaves as they are."""
        clip, values = self._config.clip_observation, dict(items(observation))
        for name, (path, _) in self._leaves.items():
            moments: RunningMoments = statistics[name]
            scaled = (values[path] - moments.mean[0]) / deviation(moments, self._config.epsilon)
            if self._random_start:
                scaled = jnp.where(moments.count[0] > 0, scaled, 0.0)
            values[path] = jnp.clip(scaled, -clip, clip)
        return unflatten(observation, list(values.values()))

    def batch(self, statistics: dict[str, Any], batch: Trajectory) -> dict[str, Any]:
        """Returns the moments of a batch, by the names of `init`: of the observations that were acted on, and of the rewards."""
        added: dict[str, Any] = {}
        for name, (path, _) in self._leaves.items():
            observation = lookup(batch.observation, path)[:-1]
            added[name] = batch_moments(observation, batch.valid)
        if self._config.rewards:
            added["return"] = return_batch(statistics["return"], batch, self._discount)
        return added

    def merged(self, statistics: dict[str, Any], added: dict[str, Moments | ReturnBatch]) -> dict[str, Any]:
        """Returns statistics that include the moments of a batch."""
        return {
            name: merge_returns(statistics[name], new) if isinstance(new, ReturnBatch) else merge(statistics[name], new)
            for name, new in added.items()
        }

    def trajectory(self, statistics: dict[str, Any], added: dict[str, Any], batch: Trajectory) -> Trajectory:
        """Returns the batch as the agent learns from it; `statistics` are those before it."""
        observation, reward, valid = self.observation(statistics, batch.observation), batch.reward, batch.valid
        if self._config.rewards:
            clip = self._config.clip_reward
            reward = jnp.clip(reward / self._reward_scale(self.merged(statistics, added)["return"]), -clip, clip)
        if self._random_start:
            # At a policy lag, statistics may have come since version 0 acted; after a partial restore, version N has none.
            is_empty = statistics[next(iter(self._leaves))].count[0] == 0
            valid = valid & (batch.policy_version > 0) & ~is_empty
        return dataclasses.replace(batch, observation=observation, reward=reward, valid=valid)

    def metrics(self, statistics: dict[str, Any]) -> Metrics:
        """Returns metrics of the statistics that include the batch."""
        if not self._config.rewards:
            return {}
        return {"normalization/reward_scale": self._reward_scale(statistics["return"])}

    def _reward_scale(self, moments: ReturnMoments) -> Array:
        return deviation(moments.running, self._config.epsilon)


def with_normalization(agent: Agent, config: NormalizationConfig, spec: EnvSpec, discount: float) -> Agent:
    """Returns the agent with normalized observations and scaled rewards.

    Its parameters become `{"agent": ..., "statistics": ...}`; its optimizer's state and `extra` stay what they are.

    Args:
        agent: Agent to wrap; returned unchanged if the settings normalize nothing.
        config: Settings.
        spec: Specification of the environment.
        discount: Discount of the running return, in [0, 1]: the agent's own.

    Raises:
        UserError: Observations are to be normalized, and have no numbers to normalize.
    """
    if not config.observations and not config.rewards:
        return agent
    normalizer = Normalizer(config, spec, discount)

    def init(key: Array) -> LearnerState:
        state = agent.init(key)
        return dataclasses.replace(state, params={_AGENT: state.params, _STATISTICS: normalizer.init()})

    def act(
        params: Params, observation: Observation, agent_state: AgentState, is_first: Array, keys: Array, mode: Mode
    ) -> tuple[Action, dict[str, Array], AgentState]:
        observation = normalizer.observation(params[_STATISTICS], observation)
        return agent.act(params[_AGENT], observation, agent_state, is_first, keys, mode)

    inner_log_prob = agent.log_prob

    def log_prob(params: Params, observation: Observation, action: Action) -> Array:
        assert inner_log_prob is not None
        return inner_log_prob(params[_AGENT], normalizer.observation(params[_STATISTICS], observation), action)

    inner_advantage = agent.advantage

    def advantage(params: Params, extra: Any, batch: Trajectory) -> tuple[Array, Array]:
        assert inner_advantage is not None
        statistics = params[_STATISTICS]
        learned = normalizer.trajectory(statistics, normalizer.batch(statistics, batch), batch)
        return inner_advantage(params[_AGENT], extra, learned)

    steps = None if agent.gradient_steps is None else _normalized_steps(agent.gradient_steps, normalizer)
    update = _normalized_update(agent.update, normalizer)
    new = agent._replace(init=init, act=act, update=update, gradient_steps=steps)
    new = new if inner_advantage is None else new._replace(advantage=advantage)
    return new if inner_log_prob is None else new._replace(log_prob=log_prob)


def _normalized_update(inner: UpdateFn, normalizer: Normalizer) -> UpdateFn:
    """Returns the same update on normalized batches; if no step of the batch counts, parameters and optimizer stay."""

    def update(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        statistics, before = state.params[_STATISTICS], _inner(state)
        added = normalizer.batch(statistics, batch)
        learned = normalizer.trajectory(statistics, added, batch)
        new, metrics = inner(before, learned, key)
        skipped = _skipped_fraction(batch, learned)
        params, opt_state = _unless(skipped, (new.params, new.opt_state), (before.params, before.opt_state))
        new = dataclasses.replace(new, params=params, opt_state=opt_state)
        statistics = normalizer.merged(statistics, added)
        return _outer(new, statistics), metrics | normalizer.metrics(statistics) | {_SKIPPED: skipped}

    return update


def _normalized_steps(steps: GradientSteps, normalizer: Normalizer) -> GradientSteps:
    """Returns the same gradient steps on normalized batches, for the plan `central`.

    The moments of the batch travel to `finish` in the summary, and are merged there. The share of steps that do not count travels
    to `apply` in the metrics.
    """

    def prepare(params: Params, extra: Any, batch: Trajectory, key: Array, num_updates: Array) -> tuple[Any, Summary]:
        statistics = params[_STATISTICS]
        added = normalizer.batch(statistics, batch)
        learned = normalizer.trajectory(statistics, added, batch)
        prepared, summary = steps.prepare(params[_AGENT], extra, learned, key, num_updates)
        skipped = _skipped_fraction(batch, learned)
        return (prepared, skipped), summary | {_BATCH: added, _SKIPPED: skipped}

    def gradient(params: Params, prepared: tuple[Any, Array], step: Array) -> tuple[Params, Metrics]:
        inner, skipped = prepared
        grads, metrics = steps.gradient(params[_AGENT], inner, step)
        return grads, metrics | {_SKIPPED: skipped}

    def apply(progress: Progress, grads: Params, metrics: Metrics) -> Progress:
        before = _inner(progress)
        after = _unless(metrics[_SKIPPED], steps.apply(before, grads, metrics), before)
        return _outer(after, progress.params[_STATISTICS])

    def finish(
        state: LearnerState, progress: Progress, summary: Summary, step_metrics: Metrics
    ) -> tuple[LearnerState, Metrics]:
        theirs = {name: value for name, value in summary.items() if name != _BATCH}
        new, metrics = steps.finish(_inner(state), _inner(progress), theirs, step_metrics)
        statistics = normalizer.merged(state.params[_STATISTICS], summary[_BATCH])
        return _outer(new, statistics), metrics | normalizer.metrics(statistics)

    return GradientSteps(steps.num_steps, prepare, gradient, apply, finish)


def _skipped_fraction(batch: Trajectory, learned: Trajectory) -> Array:
    """Returns the share of valid steps that do not count, float32 scalar; 1 without valid steps."""
    return 1.0 - jnp.sum(learned.valid) / jnp.maximum(jnp.sum(batch.valid), 1)


def _unless(skipped: Array, new: Any, old: Any) -> Any:
    """Returns `new`, or `old` where all steps are skipped: a zero gradient would still move an optimizer's moments."""
    return jax.tree.map(lambda after, before: jnp.where(skipped < 1.0, after, before), new, old)


def _inner(state: Any) -> Any:
    """Returns a learner state, or progress, of the wrapped agent."""
    return dataclasses.replace(state, params=state.params[_AGENT])


def _outer(state: Any, statistics: dict[str, Any]) -> Any:
    """Returns a learner state, or progress, with the statistics: the inverse of `_inner`."""
    return dataclasses.replace(state, params={_AGENT: state.params, _STATISTICS: statistics})
