"""Evaluation: exactly N whole episodes of fixed parameters, in this process, the same for the same seed."""

import dataclasses
from collections.abc import Callable

import gymnasium
import jax
import numpy as np

from agents.api import Agent, Mode, Params
from envpool_bridge.adapters.gymnasium_rows import GymnasiumSource
from envpool_bridge.adapters.rows import EnvRows, EnvSource, EpisodeReset, FirstRows, StepRows
from envpool_bridge.errors import UserError
from envpool_bridge.specs import EnvSpec
from jaxsrl.inference.act import make_act, row_keys

MakeEnv = EnvSource | Callable[[], gymnasium.Env]


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """Results of an evaluation.

    Attributes:
        env_id: of the environment.
        returns: of every episode, in environment reward units.
        lengths: of every episode, in env steps.
        seed: that reproduces it.
        greedy: whether the most likely action was taken.
    """

    env_id: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seed: int
    greedy: bool

    @property
    def mean_return(self) -> float:
        """Mean over episodes."""
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """Standard deviation over episodes."""
        return float(np.std(self.returns))

    def to_json(self) -> dict[str, object]:
        """What `jaxsrl evaluate --json` prints."""
        return {
            "env_id": self.env_id,
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "min_return": min(self.returns),
            "max_return": max(self.returns),
            "episodes": len(self.returns),
            "env_steps": sum(self.lengths),
            "mean_length": float(np.mean(self.lengths)),
            "seed": self.seed,
            "greedy": self.greedy,
        }


def as_source(make_env: MakeEnv) -> EnvSource:
    """A source of rows from a source, or from a function that makes one Gymnasium environment."""
    return make_env if hasattr(make_env, "make_rows") else GymnasiumSource(make_env)  # pyright: ignore


def evaluate(
    agent: Agent,
    params: Params,
    make_env: MakeEnv,
    *,
    episodes: int = 100,
    seed: int = 0,
    mode: Mode = Mode.GREEDY,
    max_rows: int = 32,
) -> EvaluationReport:
    """Plays `episodes` whole episodes.

    Episode i is played by row i modulo the number of rows, so that short episodes are not counted more often than long ones.

    Args:
        agent: whose `act` to use.
        params: of the agent.
        make_env: the environment.
        episodes: how many.
        seed: of environments and actions; independent of training's seeds.
        mode: greedy or sampled actions.
        max_rows: environments side by side.

    Raises:
        UserError: `episodes` or `max_rows` is less than 1, or `seed` negative.
    """
    for name, value, least in (("episodes", episodes, 1), ("max_rows", max_rows, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{name} must be at least {least}: got {value}")
    source = as_source(make_env)
    spec = source.spec()
    num_rows = min(episodes, max_rows)
    rows = source.make_rows(range(num_rows), _evaluation_seed(seed), False)
    try:
        finished = _play(agent, params, spec, rows, episodes, seed, mode)
    finally:
        rows.close()
    returns = [finished[episode % num_rows][episode // num_rows] for episode in range(episodes)]
    return EvaluationReport(
        spec.env_id,
        tuple(value for value, _ in returns),
        tuple(length for _, length in returns),
        seed,
        mode is Mode.GREEDY,
    )


def _play(
    agent: Agent, params: Params, spec: EnvSpec, rows: EnvRows, episodes: int, seed: int, mode: Mode
) -> list[list[tuple[float, int]]]:
    """(return, length) of each row's finished episodes, enough of each."""
    num_rows = rows.num_rows
    wanted = [len(range(row, episodes, num_rows)) for row in range(num_rows)]
    out = _step_rows(spec, num_rows)
    none = (None,) * num_rows
    rows.reset(EpisodeReset((0,) * num_rows, none), FirstRows(out.observation, out.is_first))
    act = make_act(agent, mode)
    keys = row_keys(jax.random.key(_evaluation_seed(seed)), range(num_rows))
    state = agent.initial_agent_state(num_rows)
    total, length = np.zeros(num_rows), np.zeros(num_rows, int)
    finished: list[list[tuple[float, int]]] = [[] for _ in range(num_rows)]
    action = np.zeros((num_rows, *spec.action.shape), spec.action.dtype)
    step = 0
    while any(len(done) < count for done, count in zip(finished, wanted, strict=True)):
        chosen, _, state = act(params, out.observation, state, out.is_first, keys, np.full(num_rows, step, np.uint32))
        action[...] = jax.device_get(chosen)
        out.prepare()
        rows.step(action, out)
        rows.verify(out.observation[None], out.reward[None])
        total += out.reward
        length += out.valid
        for row in np.flatnonzero(out.terminated | out.truncated):
            finished[row].append((float(total[row]), int(length[row])))
            total[row], length[row] = 0.0, 0
        step += 1
    return finished


def _step_rows(spec: EnvSpec, num_rows: int) -> StepRows:
    flags = [np.zeros(num_rows, bool) for _ in range(4)]
    observation = np.zeros((num_rows, *spec.observation.shape), spec.observation.dtype)
    reward = np.zeros(num_rows, np.float32)
    return StepRows(observation, flags[0], reward, flags[1], flags[2], flags[3])


def _evaluation_seed(seed: int) -> int:
    # Training uses the run's seed as it is; evaluation must not meet the same episodes.
    return int(np.random.SeedSequence((seed, 0xE7A1)).generate_state(1)[0])
