"""Prioritized level replay, as a transform of an on-policy agent: episodes start at levels from which there is more to learn.

`act` draws the level of a row's next episode at every step, from probabilities that are parameters. The environment reads it when
it resets. So a level depends on the parameters and on the row's own key alone, and travels as actions do. The update scores levels
by the absolute advantages of their episodes (`agents.ops.level_scores`). Random steps of a normalization do not count.

Source: Jiang et al. 2021 (arXiv:2010.03934). The result is an ordinary Agent.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Agent, AgentState, AnyAgent, Array, LearnerState, Metrics, Mode, Params, Trajectory
from agents.ops import level_scores
from agents.ops.level_scores import EpisodeSteps
from agents.transforms.level_replay_config import LevelReplayConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import NEXT_LEVEL, ArraySpec, EnvSpec

_STREAM = 0x6C766C  # "lvl": keys of levels differ from those that the agent derives


def with_level_replay(agent: AnyAgent, spec: EnvSpec, config: LevelReplayConfig, num_rows: int) -> AnyAgent:
    """Returns the agent with levels that it chooses; unchanged for environments without levels.

    Its parameters become {"learner": those of the agent, "levels": [N] float32, the probability of each}. `extras["level"]` of a
    step is the level of its episode, `extras["next_level"]` that of an episode that starts after it.

    Args:
        agent: On-policy agent that acts for every row.
        spec: Specification of all rows.
        config: Settings.
        num_rows: Rows of the run; the first episode of row r has level r modulo N.

    Raises:
        UserError: If the agent offers no advantages, or environments have several agents.
    """
    if not spec.levels:
        return agent
    if not isinstance(agent, Agent) or agent.advantage is None:
        raise UserError(
            f"levels are scored by the advantages of environment rewards: expected one policy that learns from trajectories, such "
            f"as ppo, without a pool of past selves and without imitation, got {agent.name}; use one, or no env.levels"
        )
    if spec.agents:
        raise UserError(
            f"{spec.env_id} has {len(spec.agents)} agents: levels are for environments of one agent; use no env.levels"
        )
    return agent._replace(
        init=partial(_init, agent, config, spec.levels, num_rows),
        initial_agent_state=partial(_initial_agent_state, agent, spec.levels),
        act=partial(_act, agent),
        update=partial(_update, agent, config),
        extras={**agent.extras, "level": ArraySpec((), "int32"), NEXT_LEVEL: ArraySpec((), "int32")},
        gradient_steps=None,
        log_prob=None,
        advantage=None,
    )


def _init(agent: Agent, config: LevelReplayConfig, num_levels: int, num_rows: int, key: Array) -> LearnerState:
    state, scores = agent.init(key), level_scores.init_scores(num_levels)
    extra = {"agent": state.extra, "scores": scores, "episodes": level_scores.init_episodes(num_rows)}
    return dataclasses.replace(state, params=_params(state.params, config, scores), extra=extra)


def _params(learner: Params, config: LevelReplayConfig, scores: level_scores.LevelScores) -> Params:
    probability = level_scores.probabilities(scores, config.temperature, config.staleness, config.replay_share)
    return {"learner": learner, "levels": probability}


def _initial_agent_state(agent: Agent, num_levels: int, num_rows: int) -> AgentState:
    """Returns the state of the agent ("policy"), and int32 for each row.

    "row": of the run. "level": of the episode. "next_level": of an episode that starts now. "step": steps of the run.
    """
    row = jnp.arange(num_rows, dtype=jnp.int32)
    return {
        "policy": agent.initial_agent_state(num_rows),
        "row": row,
        "level": row % num_levels,
        "next_level": row % num_levels,
        "step": jnp.zeros_like(row),
    }


def _act(
    agent: Agent, params: Params, observation: Any, agent_state: AgentState, is_first: Array, keys: Array, mode: Mode
) -> tuple[Any, dict[str, Array], AgentState]:
    action, extras, policy = agent.act(params["learner"], observation, agent_state["policy"], is_first, keys, mode)
    level = jnp.where(is_first, agent_state["next_level"], agent_state["level"])
    level_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, _STREAM)
    next_level = level_scores.draw_levels(params["levels"], level_keys)
    levels = {"level": level, NEXT_LEVEL: next_level}
    return action, {**extras, **levels}, {**agent_state, **levels, "policy": policy, "step": agent_state["step"] + 1}


def _update(
    agent: Agent, config: LevelReplayConfig, state: LearnerState, batch: Trajectory, key: Array
) -> tuple[LearnerState, Metrics]:
    """Updates the agent, then the scores by advantages under the parameters before the update."""
    assert agent.advantage is not None
    rows, extra = batch.agent_state, state.extra
    own = dataclasses.replace(
        batch, extras={name: batch.extras[name] for name in agent.extras}, agent_state=rows["policy"]
    )
    before = dataclasses.replace(state, params=state.params["learner"], extra=extra["agent"])
    advantage, counted = agent.advantage(before.params, before.extra, own)
    learned, metrics = agent.update(before, own, key)
    steps = EpisodeSteps(advantage, batch.is_first[:-1], counted, batch.terminated | batch.truncated)
    episodes, score, scored = level_scores.score_episodes(extra["episodes"], rows["row"], rows["step"], steps)
    scores = level_scores.add_episodes(extra["scores"], batch.extras["level"], score, scored)
    seen = scores.newest > 0
    metrics = metrics | {
        "levels/seen": jnp.sum(seen).astype(jnp.float32),
        "levels/score": jnp.sum(scores.score) / jnp.maximum(jnp.sum(seen), 1),
    }
    extra = {"agent": learned.extra, "scores": scores, "episodes": episodes}
    return dataclasses.replace(learned, params=_params(learned.params, config, scores), extra=extra), metrics
