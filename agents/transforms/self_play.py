"""Self-play against a pool of past selves, as a transform of an on-policy agent of a game between two teams of any sizes.

The learner plays itself in some environments. In the others one team is the learner and the other is one of K slots, each with the
parameters of a library member. The learner is the first team in half of them. Every `snapshot_every` updates the learner enters the
library. Every `reslot_every` updates each slot draws a member. The update learns from the learner's rows only.

Sources: fictitious self-play (Heinrich et al. 2015), prioritized fictitious self-play (Vinyals et al. 2019). The result is an
ordinary Agent, so every plan can run it. Normalization statistics are parameters, so a snapshot has its own.

The division of environments is in the agent state, because `act` may get any of the rows. Every policy is computed for all rows of
a call, and each row takes the result of its own: acting costs K + 1 times as much. Mode GREEDY plays the learner on both sides.
"""

import dataclasses
import functools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Agent, AgentState, AnyAgent, Array, LearnerState, Metrics, Mode, Params, Trajectory
from agents.ops import opponent_library as libraries
from agents.ops import validate
from agents.ops.game_results import Steps, init_games, play_on
from agents.ops.opponent_library import Library, Opponents
from agents.transforms.multi_policy import split_teams
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec

_SELF = -1  # opponent and controller of rows that the learner plays


@dataclasses.dataclass(frozen=True)
class SelfPlayConfig:
    """Settings of the pool of past selves.

    Attributes:
        slots: K, past selves that act at the same time. 0: off, all agents are the newest policy.
        library_size: M, past selves that are kept; the oldest leaves a full library.
        self_share: Share of environments in which the learner plays itself.
        members: Runs whose policies are members 0, 1, ... of the library from the start; they have the same network. Without them
            that is the initial policy.
        snapshot_every: Updates between two past selves that enter the library; 0 for none.
        reslot_every: Updates between two draws of the slots' members.
        opponents: Probability of a member: "uniform" (fictitious self-play), "newest", "hard" in proportion to (1 - x)^p,
            "variance" to x (1 - x), where x is the learner's rate of wins against it, or "mixture".
        exponent: p of "hard".
        mixture: Weights of members 0, 1, ... in the order in which they entered, of "mixture".
        team: Pattern of the names of the first team's agents; "" for the default of `split_teams`.
    """

    slots: int = 0
    library_size: int = 32
    self_share: float = 0.5
    members: tuple[str, ...] = ()
    snapshot_every: int = 20
    reslot_every: int = 5
    opponents: Opponents = "uniform"
    exponent: float = 2.0
    mixture: tuple[float, ...] = ()
    team: str = ""

    def __post_init__(self) -> None:
        validate.not_negative(self, "slots", "snapshot_every")
        validate.at_least_one(self, "library_size", "reslot_every")
        validate.positive(self, "exponent")
        if len(self.members) > self.library_size:
            raise UserError(
                f"self_play.library_size must be at least the number of members, {len(self.members)}: got {self.library_size}"
            )
        validate.fraction(self, "self_share", below_one=True, prefix="self_play.")
        validate.choices(self, "self_play.")
        if (self.opponents == "mixture") != bool(self.mixture):
            raise UserError(
                f"self_play.mixture has the weights of opponents 'mixture', and belongs to no others: got {self.mixture} for "
                f"{self.opponents!r}"
            )
        if self.mixture and not (min(self.mixture) >= 0.0 and sum(self.mixture) > 0.0):
            raise UserError(
                f"self_play.mixture must have weights of at least 0, and one above: expected such as (0.5, 0.5), got {self.mixture}"
            )


@dataclasses.dataclass(frozen=True)
class _Pool:
    """An agent, the settings of its pool, the first team: [rows_per_env] bool, and the parameters of the first members."""

    agent: Agent
    config: SelfPlayConfig
    first_team: tuple[bool, ...]
    members: tuple[Params, ...]


def make_self_play(
    agent: AnyAgent, spec: EnvSpec, config: SelfPlayConfig, num_rows: int, members: Sequence[Params] = ()
) -> Agent:
    """Returns the agent with a pool of past selves as opponents.

    Its parameters become {"learner": those of the agent, "slots": [K, ...] each, "members": [K] int32}. Slot k has the parameters
    of library member `members[k]`; the library is in `extra`. `extras["opponent"]` of a step is the member that the learner
    played, or -1 for itself. Of an agent of several policies, a member is all of them at one time.

    Args:
        agent: On-policy agent that acts for every row, of one policy or of several (`make_policies`).
        spec: Specification of all rows.
        config: Settings, with at least one slot.
        num_rows: Rows of the run.
        members: Parameters of the library's first members; none for the initial policy.

    Raises:
        UserError: If the agent, or one of its policies, learns from replay.
        UserError: If the environment has no two teams, or a slot would not play both teams.
    """
    first, _ = split_teams(spec, config.team, "self_play.team")
    if not isinstance(agent, Agent) or agent.bind_replay is not None:
        raise UserError(
            f"self-play needs policies that learn from trajectories, such as ppo: got {agent.name}, which learns from replay"
        )
    num_envs, needed = num_rows // spec.rows_per_env, 2 * config.slots
    against_slots = int(_rank(config, np.asarray(num_envs)))
    if against_slots < needed:
        least = _least_envs(config, needed) * spec.rows_per_env
        raise UserError(
            f"self_play.slots: each of {config.slots} slots needs an environment for either team: expected {needed} "
            f"environments without self-play, got {against_slots} of {num_envs}; use fewer slots, a smaller self_share or "
            f"--run.num-envs {least} at least"
        )
    pool = _Pool(agent, config, tuple(row in first for row in range(spec.rows_per_env)), tuple(members))
    return agent._replace(
        init=partial(_init, pool, num_envs),
        initial_agent_state=partial(_initial_agent_state, pool),
        act=partial(_act, pool),
        update=partial(_update, pool),
        extras={**agent.extras, "opponent": ArraySpec((), "int32")},
        groups=(),
        gradient_steps=None,
        advantage=None,
        log_prob=None,
    )


def _slots(config: SelfPlayConfig, env: np.ndarray) -> np.ndarray:
    """Returns the slot of each environment, -1 where the learner plays itself; both are spread evenly."""
    return np.where(_plays_itself(config, env), _SELF, _rank(config, env) % config.slots)


def _plays_itself(config: SelfPlayConfig, env: np.ndarray) -> np.ndarray:
    return _num_self(config, env + 1) > _num_self(config, env)


def _num_self(config: SelfPlayConfig, num_envs: np.ndarray) -> np.ndarray:
    return np.floor(num_envs * config.self_share + 1e-9).astype(np.int64)


def _rank(config: SelfPlayConfig, env: np.ndarray) -> np.ndarray:
    """Returns the number of environments before each in which a slot plays."""
    return env - _num_self(config, env)


def _least_envs(config: SelfPlayConfig, against_slots: int) -> int:
    """Returns the smallest number of environments of which slots play in `against_slots`."""
    num_envs = int((against_slots - 1) / (1.0 - config.self_share)) + 1
    while _rank(config, np.asarray(num_envs)) < against_slots:
        num_envs += 1
    return num_envs


def _init(pool: _Pool, num_envs: int, key: Array) -> LearnerState:
    state = pool.agent.init(key)
    first, *others = pool.members or (state.params,)
    library = functools.reduce(libraries.add_member, others, libraries.init_library(first, pool.config.library_size))
    extra = {"agent": state.extra, "library": library, "games": init_games(num_envs)}
    # The agent's key is used whole, so that it is initialized as without a pool.
    members = _draw(pool.config, library, jax.random.fold_in(key, 0))
    return dataclasses.replace(state, params=_params(state.params, library, members), extra=extra)


def _draw(config: SelfPlayConfig, library: Library, key: Array) -> Array:
    probability = libraries.probabilities(library, config.opponents, config.exponent, config.mixture)
    return libraries.draw_members(library, probability, config.slots, key)


def _params(learner: Params, library: Library, members: Array) -> Params:
    return {"learner": learner, "slots": libraries.take_members(library, members), "members": members}


def _initial_agent_state(pool: _Pool, num_rows: int) -> AgentState:
    """Returns the state of the agent ("policy"), and for each row what it plays.

    "env": environment of the run. "slot": slot that plays in it, or -1. "controller": slot that acts for the row, or -1 for the
    learner. "opponent": member at the last step. "step": steps of the run. All are int32.
    """
    env, agent = np.divmod(np.arange(num_rows), len(pool.first_team))
    slot = _slots(pool.config, env)
    learner_is_first = (_rank(pool.config, env) // pool.config.slots) % 2 == 0
    is_learner = (slot == _SELF) | (np.asarray(pool.first_team)[agent] == learner_is_first)
    return {
        "policy": pool.agent.initial_agent_state(num_rows),
        "env": jnp.asarray(env, jnp.int32),
        "slot": jnp.asarray(slot, jnp.int32),
        "controller": jnp.asarray(np.where(is_learner, _SELF, slot), jnp.int32),
        "opponent": jnp.full(num_rows, _SELF, jnp.int32),
        "step": jnp.zeros(num_rows, jnp.int32),
    }


def _act(
    pool: _Pool, params: Params, observation: Any, agent_state: AgentState, is_first: Array, keys: Array, mode: Mode
) -> tuple[Any, dict[str, Array], AgentState]:
    """Acts for rows [R]; a slot starts with a new recurrent state where its member has changed since the last step."""
    memory, slot = agent_state["policy"], agent_state["slot"]
    opponent = jnp.full_like(slot, _SELF)
    action, extras, after = pool.agent.act(params["learner"], observation, memory, is_first, keys, mode)
    if mode is Mode.SAMPLE:
        opponent = jnp.where(slot == _SELF, _SELF, params["members"][slot])
        starts = is_first | (opponent != agent_state["opponent"])

        def act_slot(past: Params) -> tuple[Any, dict[str, Array], AgentState]:
            return pool.agent.act(past, observation, memory, starts, keys, mode)

        choose = partial(_choose, agent_state["controller"])
        theirs = jax.vmap(act_slot)(params["slots"])
        action, extras, after = jax.tree.map(choose, (action, extras, after), theirs)
    state = {**agent_state, "policy": after, "opponent": opponent, "step": agent_state["step"] + 1}
    return action, {**extras, "opponent": opponent}, state


def _choose(controller: Array, learner: Array, slots: Array) -> Array:
    """Returns for each row the value [R, ...] of the learner, or that of its slot among [K, R, ...]."""
    own = slots[jnp.maximum(controller, 0), jnp.arange(len(controller))]
    is_learner = (controller == _SELF).reshape((-1,) + (1,) * (learner.ndim - 1))
    return jnp.where(is_learner, learner, own)


def _update(pool: _Pool, state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
    """Updates the learner from its rows, then the results of games, the library, and the slots."""
    config, rows = pool.config, batch.agent_state
    learn_key, draw_key = jax.random.split(key)
    own = dataclasses.replace(
        batch,
        valid=batch.valid & (rows["controller"] == _SELF),
        extras={name: batch.extras[name] for name in pool.agent.extras},
        agent_state=rows["policy"],
    )
    before = dataclasses.replace(state, params=state.params["learner"], extra=state.extra["agent"])
    learned, metrics = pool.agent.update(before, own, learn_key)
    first = partial(_first_rows, len(pool.first_team), 0)
    games, results = play_on(state.extra["games"], first(rows["env"]), first(rows["step"]), _steps(pool, batch))
    library = libraries.count_games(state.extra["library"], *results)
    number, members = learned.num_updates, state.params["members"]
    if config.snapshot_every:
        library = jax.lax.cond(
            number % config.snapshot_every == 0,
            lambda: libraries.add_member(library, learned.params),
            lambda: library,
        )
    drawn = _draw(config, library, draw_key)
    # A slot never has a member that has left the library.
    members = jnp.where((number % config.reslot_every == 0) | ~libraries.holds(library, members), drawn, members)
    extra = {"agent": learned.extra, "library": library, "games": games}
    params = _params(learned.params, library, members)
    metrics = metrics | _metrics(library, results.counts)
    return dataclasses.replace(learned, params=params, extra=extra), metrics


def _metrics(library: Library, counts: Array) -> Metrics:
    present = library.member >= 0
    mean = jnp.sum(jnp.where(present, libraries.win_rates(library), 0.0)) / jnp.sum(present)
    return {
        "self_play/members": jnp.sum(present).astype(jnp.float32),
        "self_play/games": jnp.sum(counts).astype(jnp.float32),
        "self_play/win_rate": mean,
    }


def _steps(pool: _Pool, batch: Trajectory) -> Steps:
    """Returns the steps of whole environments, of trajectories [T, R * rows_per_env].

    The team with the larger mean reward of its agents wins. A reward is multiplied by the size of the other team: sums of teams
    then compare as their means do. A game that a failure cut has no end.
    """
    first_team = np.asarray(pool.first_team)
    rows_per_env = len(first_team)
    by_env = (*batch.valid.shape[:1], -1, rows_per_env)
    other_size = np.where(first_team, np.sum(~first_team), np.sum(first_team))
    sign = jnp.where(batch.agent_state["controller"] == _SELF, 1.0, -1.0)
    score = jnp.where(batch.valid, batch.reward * sign, 0.0).reshape(by_env) * other_size.astype(np.float32)
    valid, ended = batch.valid.reshape(by_env), (batch.terminated | batch.truncated).reshape(by_env)
    played = jnp.any(valid, axis=2)
    is_failure = jnp.any(ended, axis=2) & ~played
    is_cut = jnp.concatenate([is_failure[1:], jnp.zeros_like(is_failure[:1])])
    return Steps(
        jnp.sum(score, axis=2),
        jnp.sum(jnp.abs(score), axis=2),
        _first_rows(rows_per_env, 1, batch.extras["opponent"]),
        played,
        jnp.any(ended, axis=2) & ~jnp.any(valid & ~ended, axis=2) & ~is_cut,  # the last of its agents
    )


def _first_rows(rows_per_env: int, axis: int, array: Array) -> Array:
    """Returns the value of the first row of each environment; a reshape keeps rows that are sharded where they are."""
    return array.reshape((*array.shape[:axis], -1, rows_per_env, *array.shape[axis + 1 :])).take(0, axis=axis + 1)
