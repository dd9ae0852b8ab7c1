"""Speed of other systems that train PPO on Pong with the settings of `ppo_atari`, on CPUs.

PYTHON docs/lab/pong_rivals.py sb3 [SECONDS]
PYTHON docs/lab/pong_rivals.py sample_factory [SECONDS]

PYTHON has stable-baselines3 or Sample Factory, ale-py and opencv-python-headless, without jaxsrl. 16 environments of 128 steps,
4 epochs of 4 minibatches of 512, Nature CNN, two threads of PyTorch. Prints env steps per second and samples of gradients per
second of learning, over whole updates after two of warm-up.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from ale_py.env import AtariEnv
from gymnasium.wrappers import AtariPreprocessing

NUM_ENVS, NUM_STEPS, BATCH_SIZE, EPOCHS, THREADS, WARM_UP = 16, 128, 512, 4, 2, 2
Update = tuple[float, float, float]
"""Time at the end of an update [s], env steps so far, seconds of learning in it."""


class WithChannel(gymnasium.ObservationWrapper):
    """Images [84, 84] as [1, 84, 84], which stable-baselines3 stacks without transposing them."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (1, *env.observation_space.shape), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Adds the axis."""
        return observation[None]


def make_pong() -> Any:
    """Returns Pong as suite "atari" of jaxsrl makes it: 84 x 84 gray, four frames a step, 6 actions, not sticky."""
    # ale-py 0.12 registers its ids with Gymnasium 1 only, which Sample Factory does not accept.
    env = AtariEnv(
        "pong", frameskip=1, repeat_action_probability=0.0, full_action_space=False, max_num_frames_per_episode=108_000
    )
    return AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)


def make_row() -> Any:
    """Returns an environment of stable-baselines3."""
    from stable_baselines3.common.monitor import Monitor  # pyright: ignore[reportMissingImports]

    return Monitor(WithChannel(make_pong()))


def train_sb3(seconds: float) -> list[Update]:
    """Returns the updates of PPO of stable-baselines3, with environments in processes of their own."""
    import torch  # pyright: ignore[reportMissingImports]
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(THREADS)
    updates: list[Update] = []

    class TimedPPO(PPO):
        """PPO that measures its updates."""

        def train(self) -> None:
            """Makes an update."""
            start = time.perf_counter()
            super().train()
            end = time.perf_counter()
            updates.append((end, self.num_timesteps, end - start))

    settings: dict[str, Any] = {
        "learning_rate": 2.5e-4,
        "n_steps": NUM_STEPS,
        "batch_size": BATCH_SIZE,
        "n_epochs": EPOCHS,
        "clip_range": 0.1,
        "clip_range_vf": 0.1,
        "ent_coef": 0.01,
    }
    model = TimedPPO("CnnPolicy", VecFrameStack(SubprocVecEnv([make_row] * NUM_ENVS), 4), **settings, device="cpu")
    model.learn(
        10**9, callback=lambda *_: len(updates) <= WARM_UP or updates[-1][0] < updates[WARM_UP - 1][0] + seconds
    )
    model.env.close()
    return updates


def make_stacked_pong(*_: Any, **__: Any) -> Any:
    """Returns an environment of Sample Factory."""
    from gymnasium.wrappers import FrameStack  # pyright: ignore[reportAttributeAccessIssue]
    from sample_factory.envs.env_wrappers import NumpyObsWrapper  # pyright: ignore[reportMissingImports]

    return NumpyObsWrapper(FrameStack(make_pong(), 4))


def set_up_sample_factory() -> Callable[[], Any]:
    """Changes Sample Factory to write the updates to a file and to learn with two threads; returns what makes its trainer."""
    from sample_factory.algo.learning import learner, learner_worker  # pyright: ignore[reportMissingImports]
    from sample_factory.envs.env_utils import register_env  # pyright: ignore[reportMissingImports]
    from sample_factory.train import make_runner  # pyright: ignore[reportMissingImports]
    from sf_examples.atari.train_atari import (  # pyright: ignore[reportMissingImports]
        parse_atari_args,
        register_atari_components,
    )

    train, set_threads = learner.Learner.train, learner_worker.init_torch_runtime

    def timed_train(self: Any, batch: Any) -> Any:
        start = time.perf_counter()
        stats = train(self, batch)
        with open(os.environ["UPDATES"], "a") as file:
            file.write(f"{time.time()} {self.env_steps} {time.perf_counter() - start}\n")
        return stats

    learner.Learner.train = timed_train
    learner_worker.init_torch_runtime = lambda config: set_threads(config, THREADS)
    flags = (
        "--algo=APPO --env=pong84 --experiment=pong --restart_behavior=overwrite --device=cpu --async_rl=False "
        "--num_workers=2 --num_envs_per_worker=8 --worker_num_splits=2 --normalize_input=False --obs_scale=255 "
        f"--rollout={NUM_STEPS} --batch_size={BATCH_SIZE} --num_batches_per_epoch=4 --num_epochs={EPOCHS} --use_rnn=False "
        "--encoder_conv_architecture=convnet_atari --nonlinearity=relu --env_frameskip=4 --env_framestack=4 "
        "--learning_rate=0.00025 --ppo_clip_ratio=0.1 --ppo_clip_value=0.1 --summaries_use_frameskip=False "
        "--save_every_sec=36000 --save_best_every_sec=36000"
    ).split()

    def make() -> Any:
        register_atari_components()
        register_env("pong84", make_stacked_pong)
        return make_runner(parse_atari_args([*flags, f"--train_dir={os.environ['UPDATES']}.d"]))[1]

    return make


def train_sample_factory(seconds: float) -> list[Update]:
    """Returns the updates of Sample Factory's synchronous PPO, with two rollout workers."""
    from sample_factory.algo.runners.runner import AlgoObserver  # pyright: ignore[reportMissingImports]

    path = Path(os.environ["UPDATES"])

    def read() -> list[Update]:
        return [tuple(map(float, line.split())) for line in path.read_text().splitlines()] if path.exists() else []  # pyright: ignore[reportReturnType]

    class Stop(AlgoObserver):
        """Ends training; --train_for_seconds has no effect in 2.1.1."""

        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            """Looks at the clock."""
            del training_iteration_since_resume
            updates = read()
            if len(updates) > WARM_UP and updates[-1][0] > updates[WARM_UP - 1][0] + seconds:
                runner._stop_training()

    runner = MAKE_RUNNER()
    runner.register_observer(Stop())
    runner.init()
    runner.run()
    return read()


# Its processes are spawned: they import this module again, and so have the same changes.
MAKE_RUNNER: Callable[[], Any] = set_up_sample_factory() if sys.argv[1:2] == ["sample_factory"] else lambda: None

if __name__ == "__main__":
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    with tempfile.TemporaryDirectory() as directory:
        os.environ["UPDATES"] = str(Path(directory, "updates"))
        rows = {"sb3": train_sb3, "sample_factory": train_sample_factory}[sys.argv[1]](limit)
    first, counted = rows[WARM_UP - 1], rows[WARM_UP:]
    env_steps, learning = counted[-1][1] - first[1], sum(row[2] for row in counted)
    print(  # noqa: T201
        f"{env_steps / (counted[-1][0] - first[0]):.1f} env steps/s, {env_steps * EPOCHS / learning:.0f} gradient samples/s"
    )
