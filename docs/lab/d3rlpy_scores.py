"""Greedy returns of d3rlpy's IQL and TD3+BC on a Minari dataset.

Networks, rates and batches are those of `jaxsrl train iql` and `td3_bc`. The actor's rate decays to 0 at the last gradient step.

PYTHON docs/lab/d3rlpy_scores.py DIRECTORY ALGORITHM SEED [GRADIENT_STEPS]

PYTHON has d3rlpy and Gymnasium with MuJoCo, without jaxsrl. DIRECTORY is the dataset's in Minari's storage, with data/ in it;
ALGORITHM is iql or td3_bc. Prints the mean return of 20 greedy episodes of Hopper-v5 at the end.
"""

import sys
import time
from pathlib import Path
from typing import Any

import d3rlpy  # pyright: ignore[reportMissingImports]
import gymnasium
import h5py  # pyright: ignore[reportMissingImports]
import numpy as np
from d3rlpy.algos import IQLConfig, TD3PlusBCConfig  # pyright: ignore[reportMissingImports]
from d3rlpy.optimizers import AdamFactory  # pyright: ignore[reportMissingImports]
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory  # pyright: ignore[reportMissingImports]
from d3rlpy.preprocessing import StandardObservationScaler  # pyright: ignore[reportMissingImports]

EPISODES = 20


def read_steps(directory: Path) -> Any:
    """Returns the dataset in d3rlpy's form."""
    parts: dict[str, list[np.ndarray]] = {
        name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts")
    }
    with h5py.File(directory / "data" / "main_data.hdf5") as file:
        for episode in file.values():
            ended = np.asarray(episode["terminations"])
            parts["observations"].append(np.asarray(episode["observations"][:-1], np.float32))
            parts["actions"].append(np.asarray(episode["actions"]))
            parts["rewards"].append(np.asarray(episode["rewards"], np.float32))
            parts["terminals"].append(ended.astype(np.float32))
            last = np.zeros(len(ended), np.float32)
            last[-1] = float(not ended[-1])
            parts["timeouts"].append(last)
    return d3rlpy.dataset.MDPDataset(**{name: np.concatenate(each) for name, each in parts.items()})


def make_algorithm(name: str, gradient_steps: int) -> Any:
    """Returns an algorithm with normalized observations."""
    scaler = StandardObservationScaler()
    if name == "td3_bc":
        return TD3PlusBCConfig(observation_scaler=scaler).create()
    decay = AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=gradient_steps))
    return IQLConfig(observation_scaler=scaler, actor_optim_factory=decay).create()


def mean_return(algorithm: Any, seed: int) -> float:
    """Returns the mean return of greedy episodes."""
    env, returns = gymnasium.make("Hopper-v5"), []
    for episode in range(EPISODES):
        observation, ended, total = env.reset(seed=1000 * seed + episode)[0], False, 0.0
        while not ended:
            action = algorithm.predict(observation[None].astype(np.float32))[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    """Trains and evaluates."""
    directory, name, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    gradient_steps = int(sys.argv[4]) if len(sys.argv) > 4 else 50_000
    d3rlpy.seed(seed)
    algorithm, start = make_algorithm(name, gradient_steps), time.perf_counter()
    algorithm.fit(
        read_steps(directory),
        n_steps=gradient_steps,
        n_steps_per_epoch=gradient_steps // 5,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    seconds = time.perf_counter() - start
    print(  # noqa: T201
        f"{name} seed {seed}: return {mean_return(algorithm, seed):.1f}, {gradient_steps / seconds:.0f} gradient steps/s"
    )


if __name__ == "__main__":
    main()
