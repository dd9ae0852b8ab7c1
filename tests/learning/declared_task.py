"""One small task in many declarations, agents that learn it, and a table of their returns: python -m tests.learning.declared_task.

An episode has eight steps. Each shows a new number in 0, 0.05, ..., 1, which all forms encode. The best discrete action is its
third (0, 1 or 2), for a reward of 1 and else 0. The best continuous one is the place of the number in the box, for 1 - 4 times the
squared distance. The best return is 8, and that of uniformly random actions 2.67 (discrete) or 2.4 (continuous).
"""

import argparse
import dataclasses
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from agents.a2c import A2CConfig
from agents.api import ReplayConfig
from agents.ddpg import DDPGConfig
from agents.dreamer import DreamerConfig
from agents.impala import IMPALAConfig
from agents.muzero import MuZeroConfig
from agents.networks.observation_scale import scaled
from agents.ppg import PPGConfig
from agents.r2d2 import R2D2Config
from agents.reinforce import REINFORCEConfig
from agents.search.gumbel import GumbelConfig
from agents.search.puct import PUCTConfig
from agents.stochastic_muzero import StochasticMuZeroConfig
from agents.world_models.sizes import WorldModelConfig
from envpool_bridge.errors import UserError
from experiments import dqn, ppo, sac, td3
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig, make_env

BEST, LEVELS, STEPS = 8.0, 21, 8
_DIRECTORY = tempfile.TemporaryDirectory()  # of all runs, which share compiled programs
TOLERANCE = 0.4  # of a return of 8, below the intervals
_T = {2: 4.303}  # 97.5 % quantile of Student's distribution with two degrees of freedom: three seeds


def _numbers(low: float, high: float, dtype: Any = np.float32) -> tuple[spaces.Box, Callable[[int], np.ndarray]]:
    """Returns the space of [number, 1 - number], spread over the bounds, and the function from levels, 0 to 20, to them."""

    def show(level: int) -> np.ndarray:
        unit = np.array([level, LEVELS - 1 - level]) / (LEVELS - 1)
        values = low + (high - low) * unit
        return (np.rint(values) if np.dtype(dtype).kind in "iu" else values).astype(dtype)

    return spaces.Box(low, high, (2,), dtype), show


_PLAIN, _plain = _numbers(-1, 1)


class Form(NamedTuple):
    """A declaration.

    Attributes:
        observation: Space of the number.
        show: Function from the level, 0 to 20, to the observation.
        action: Space of actions.
        act: Function from an action to the third, or to the place in the box.
        reward: Function from a float to the reward.
        mask: Where the mask is, "observation" or "info".
    """

    observation: spaces.Space = _PLAIN
    show: Callable[[int], Any] = _plain
    action: spaces.Space = spaces.Discrete(3)
    act: Callable[[Any], float] = int
    reward: Callable[[float], Any] = float
    mask: str = ""


def _box(low: float, high: float, dtype: Any = np.float32) -> Form:
    return Form(action=spaces.Box(low, high, (1,), dtype), act=lambda action: (float(action[0]) - low) / (high - low))


_UNIT = _box(-1, 1)
_PARTS = spaces.Dict({"number": _PLAIN, "rest": spaces.Box(-1, 1, (2,), np.float32)})
_LEGAL = np.array([1, 1, 1, 0], np.int8)


def _parts(level: int) -> dict[str, np.ndarray]:
    return {"number": _plain(level), "rest": np.zeros(2, np.float32)}


_EITHER = {
    "float32 [-1, 1]": Form(),
    "float64 [0, 10000]": Form(*_numbers(0, 10_000, np.float64)),
    "float32 [0, 1]": Form(*_numbers(0, 1, np.float32)),
    "float32 [0, 100]": Form(*_numbers(0, 100, np.float32)),
    "int8 [-10, 10]": Form(*_numbers(-10, 10, np.int8)),
    "int16 [0, 10000]": Form(*_numbers(0, 10_000, np.int16)),
    "int32 [0, 10000]": Form(*_numbers(0, 10_000, np.int32)),
    "int64 [0, 20]": Form(*_numbers(0, 20, np.int64)),
    "uint8 [0, 255]": Form(*_numbers(0, 255, np.uint8)),
    "Discrete(21, start=5)": Form(spaces.Discrete(LEVELS, start=5), lambda level: level + 5),
    "Dict": Form(_PARTS, _parts),
    "Tuple": Form(spaces.Tuple(_PARTS.values()), lambda level: tuple(_parts(level).values())),
    "flattened": Form(spaces.flatten_space(_PARTS), lambda level: spaces.flatten(_PARTS, _parts(level))),
    "reward np.float64": Form(reward=np.float64),
    "reward float32 array": Form(reward=lambda reward: np.array(reward, np.float32)),
}
DISCRETE = _EITHER | {
    "action Discrete(3, start=5)": Form(action=spaces.Discrete(3, start=5), act=lambda action: int(action) - 5),
    "action MultiDiscrete": Form(action=spaces.MultiDiscrete([3]), act=lambda action: int(action[0])),
    "mask in the observation": Form(action=spaces.Discrete(4), mask="observation"),
    "mask in info": Form(action=spaces.Discrete(4), mask="info"),
    "reward int": Form(reward=int),
    "reward bool": Form(reward=np.bool_),
}
CONTINUOUS = {name: form._replace(action=_UNIT.action, act=_UNIT.act) for name, form in _EITHER.items()} | {
    "action [0, 1]": _box(0, 1),
    "action [0, 100]": _box(0, 100),
    "action float64": _box(-1, 1, np.float64),
    "action [-1000, 1000]": _box(-1000, 1000),
    "action Dict": Form(action=spaces.Dict({"place": _UNIT.action}), act=lambda action: _UNIT.act(action["place"])),
}


class DeclaredTask(gymnasium.Env):
    """The task in a form of `DISCRETE` or `CONTINUOUS`."""

    def __init__(self, form: str, is_discrete: bool) -> None:
        self._form, self._is_discrete = (DISCRETE if is_discrete else CONTINUOUS)[form], is_discrete
        self.action_space, self.observation_space = self._form.action, self._form.observation
        if self._form.mask == "observation":
            mask = spaces.Box(0, 1, (4,), np.int8)
            self.observation_space = spaces.Dict({"number": self._form.observation, "action_mask": mask})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._shown()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        choice = self._form.act(action)
        if self._is_discrete:
            assert choice < 3, "an illegal action"
            reward = float(choice == self._level // 7)
        else:
            assert -1e-6 <= choice <= 1.0 + 1e-6, "an action outside of its box"
            reward = 1.0 - 4.0 * (choice - self._level / (LEVELS - 1)) ** 2
        self._step += 1
        observation, info = self._shown()
        return observation, self._form.reward(reward), False, self._step == STEPS, info

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        self._level = int(self.np_random.integers(LEVELS))
        observation = self._form.show(self._level)
        if self._form.mask == "observation":
            observation = {"number": observation, "action_mask": _LEGAL}
        return observation, {"action_mask": _LEGAL} if self._form.mask == "info" else {}


if "DeclaredTask-v0" not in gymnasium.registry:  # this file may be __main__ and a module
    gymnasium.register("DeclaredTask-v0", "tests.learning.declared_task:DeclaredTask")


def _general(module: Any, steps: int, **changes: Any) -> Callable[[EnvConfig], Experiment]:
    """Returns the general experiment as `jaxsrl train` runs it, with fewer steps, and changed fields of the agent."""

    def make(env: EnvConfig) -> Experiment:
        experiment = module.make_experiment(env)
        run = dataclasses.replace(experiment.run, total_env_steps=steps)
        return dataclasses.replace(experiment, agent=dataclasses.replace(experiment.agent, **changes), run=run)

    return make


def _own(agent: Any, num_envs: int, rollout: int, steps: int, network: NetworkConfig | None = None) -> Any:
    run = RunConfig(num_envs=num_envs, rollout_length=rollout, total_env_steps=steps, max_policy_lag=0)
    return lambda env: Experiment(env, agent, network or NetworkConfig(), run)


def _replay(gradient_steps: float, batch: int, **options: Any) -> ReplayConfig:
    return ReplayConfig(20_000, batch, min_size=512, gradient_steps_per_env_step=gradient_steps, **options)


_RELU = NetworkConfig(hidden_sizes=(64, 64), activation="relu")
AGENTS: dict[str, Callable[[EnvConfig], Experiment]] = {
    "ppo": _general(ppo, 20_480),
    "impala": _own(IMPALAConfig(5e-3, discount=0.9), 32, 8, 40_960),
    "a2c": _own(A2CConfig(5e-3, discount=0.9), 32, 8, 40_960),
    "reinforce": _own(REINFORCEConfig(1e-2, discount=0.5), 32, 32, 81_920),
    "ppg": _own(PPGConfig(2e-3, discount=0.9, num_policy_phases=4, num_auxiliary_minibatches=4), 32, 32, 40_960),
    "dqn": _general(dqn, 8_192, discount=0.9),
    "r2d2": _own(R2D2Config(_replay(0.0625, 32), discount=0.9, learning_rate=2e-3), 16, 8, 10_240),
    "muzero": _own(
        MuZeroConfig(_replay(0.125, 128), gumbel=GumbelConfig(8), value_limit=20, discount=0.9, learning_rate=3e-3),
        16,
        16,
        10_240,
    ),
    "stochastic_muzero": _own(
        StochasticMuZeroConfig(
            _replay(0.125, 128), puct=PUCTConfig(8), value_limit=20, discount=0.9, learning_rate=3e-3
        ),
        16,
        16,
        10_240,
    ),
    "dreamer": _own(
        DreamerConfig(_replay(0.0625, 16), model=WorldModelConfig("1m"), learning_rate=4e-4, warmup_steps=100),
        8,
        16,
        10_240,
    ),
    "ppo (continuous)": _general(ppo, 40_960),
    "a2c (continuous)": _own(A2CConfig(2e-3, discount=0.9), 32, 8, 81_920, NetworkConfig(initial_log_std=-0.5)),
    "sac": _general(sac, 1_024, replay=_replay(1.0, 64), discount=0.9),
    "td3": _general(td3, 3_072, replay=_replay(1.0, 64), discount=0.9),
    "ddpg": _own(DDPGConfig(_replay(1.0, 64), discount=0.9), 8, 4, 3_072, _RELU),
}
_IN_UNITS = ("ppo", "ppo (continuous)", "dreamer")  # running statistics or logarithms of the environment's own numbers
CONTINUOUS_AGENTS = ("ppo (continuous)", "a2c (continuous)", "sac", "td3", "ddpg")


def forms_of(agent: str) -> dict[str, Form]:
    """Returns the forms that an agent of this name learns from."""
    return CONTINUOUS if agent in CONTINUOUS_AGENTS else DISCRETE


def environment(agent: str, form: str) -> EnvConfig:
    """Returns the task in a form."""
    kwargs = {"form": form, "is_discrete": agent not in CONTINUOUS_AGENTS}
    env = EnvConfig("tests.learning.declared_task:DeclaredTask-v0", "gymnasium", kwargs)
    return dataclasses.replace(env, mask_from_info=forms_of(agent)[form].mask == "info")


def seen_numbers(agent: str, name: str) -> Any:
    """Returns what decides about a run: equal values, equal runs to the bit."""
    form, env = forms_of(agent)[name], environment(agent, name)
    if form.mask or not isinstance(form.observation, spaces.Box):
        return name
    leaf: Any = make_env(env).spec().observation
    shown = np.stack([form.show(level) for level in range(LEVELS)]).astype(leaf.dtype)
    if agent not in _IN_UNITS:
        shown = np.asarray(scaled(leaf, shown))
    rewards = [float(form.reward(value)) for value in (0.0, 1.0)]
    return shown.tobytes(), tuple(rewards), repr(form.action), form.act


def greedy_return(agent: str, form: str, seed: int = 0) -> float:
    """Returns the mean greedy return after training; raises UserError where the agent rejects the form before it starts."""
    experiment = AGENTS[agent](environment(agent, form))
    name = re.sub(r"\W", "_", f"{agent} {form} {seed}")
    run = dataclasses.replace(
        experiment.run, plan="serial", max_policy_lag=0, seed=seed, directory=_DIRECTORY.name, name=name,
        eval=EvalConfig(final_episodes=50), checkpoint=CheckpointConfig(interval_updates=0),
    )  # fmt: skip
    evaluation = dataclasses.replace(experiment, run=run).train(quiet=True).evaluation
    assert evaluation is not None, "stopped by a signal"
    return evaluation.mean_return


def interval(returns: Sequence[float]) -> float:
    """Returns half of the 95 % interval of the mean of three returns."""
    return _T[len(returns) - 1] * statistics.stdev(returns) / math.sqrt(len(returns))


def main() -> None:
    """Prints a row for each agent and form: mean return of three seeds with interval, or the reason of a rejection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", default=list(AGENTS), help=f"of {', '.join(AGENTS)}")
    parser.add_argument("--forms", nargs="*", help="names of forms; others are skipped")
    parser.add_argument("--seeds", type=int, default=3, choices=(1, 3))
    options, different = parser.parse_args(), 0
    sys.stdout.write("| agent | form | return | interval | seconds | |\n|---|---|---:|---:|---:|---|\n")
    for agent in options.agents:
        first, trained = list[float](), dict[Any, str]()
        for form in (form for form in forms_of(agent) if not options.forms or form in options.forms):
            start, same = time.monotonic(), trained.setdefault(seen_numbers(agent, form), form)
            if same != form:
                sys.stdout.write(f"| {agent} | {form} | as {same} | | | |\n")
                continue
            try:
                returns = [greedy_return(agent, form, seed) for seed in range(options.seeds)]
            except UserError as error:
                sys.stdout.write(f"| {agent} | {form} | rejected | | | {error} |\n")
                continue
            first = first or returns
            width = interval(returns) if len(returns) > 1 else 0.0
            allowed = TOLERANCE + width + (interval(first) if len(first) > 1 else 0.0)
            is_equal = abs(statistics.mean(returns) - statistics.mean(first)) <= allowed
            different += not is_equal
            verdict = "" if is_equal else "DIFFERENT"
            seconds = time.monotonic() - start
            sys.stdout.write(
                f"| {agent} | {form} | {statistics.mean(returns):.2f} | {width:.2f} | {seconds:.0f} | {verdict} |\n"
            )
            sys.stdout.flush()
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
