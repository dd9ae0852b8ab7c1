"""PPO of stable-baselines3 until its mean return passes a threshold. A script for an interpreter that has it, without jaxsrl.

Run: PYTHON sb3_ppo.py SETTINGS, a JSON object with env_id, seed, threshold and started (time.time() before the process started). It
prints one JSON object: env_steps, seconds, training_seconds and version; the first three are null if training ended below it.
"""

# stable-baselines3 and torch are in an environment of their own:
# pyright: reportMissingImports=false

import collections
import json
import sys
import time
from typing import Any

EPISODES = 100
# Values of rl-baselines3-zoo, hyperparams/ppo.yml; HalfCheetah's are those of version 3. Numbers in `linear` fall to 0 linearly.
_CARTPOLE: dict[str, Any] = {
    "n_envs": 8,
    "total_timesteps": 100_000,
    "linear": {"learning_rate": 1e-3, "clip_range": 0.2},
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "ent_coef": 0.0,
}
_LUNAR_LANDER: dict[str, Any] = {
    "n_envs": 16,
    "total_timesteps": 1_000_000,
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}
_HALF_CHEETAH: dict[str, Any] = {
    "n_envs": 1,
    "total_timesteps": 1_000_000,
    "normalize": True,
    "n_steps": 512,
    "batch_size": 64,
    "gamma": 0.98,
    "learning_rate": 2.0633e-05,
    "ent_coef": 0.000401762,
    "clip_range": 0.1,
    "n_epochs": 20,
    "gae_lambda": 0.92,
    "max_grad_norm": 0.8,
    "vf_coef": 0.58096,
    "wide": True,  # 2 x 256 ReLU for policy and value each, no orthogonal weights, initial log deviation -2
}
SETTINGS = {"CartPole-v1": _CARTPOLE, "LunarLander-v3": _LUNAR_LANDER, "HalfCheetah-v5": _HALF_CHEETAH}


def learn(env_id: str, seed: int, threshold: float, started: float) -> dict[str, Any]:
    """Trains until the mean return of the last 100 episodes passes the threshold, or the zoo's number of steps is spent."""
    import stable_baselines3
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    settings = dict(SETTINGS[env_id])
    total, num_envs = settings.pop("total_timesteps"), settings.pop("n_envs")
    for name, value in settings.pop("linear", {}).items():
        settings[name] = _linear(value)
    if settings.pop("wide", False):
        settings["policy_kwargs"] = _wide_policy()
    envs = make_vec_env(env_id, num_envs, seed=seed)
    if settings.pop("normalize", False):
        envs = VecNormalize(envs, gamma=settings["gamma"])
    result: dict[str, Any] = {"env_steps": None, "seconds": None, "training_seconds": None}

    class StopAtThreshold(BaseCallback):
        """Ends training when the mean of the last episodes passes the threshold."""

        def __init__(self) -> None:
            super().__init__()
            self.returns: collections.deque[float] = collections.deque(maxlen=EPISODES)

        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            self.returns.extend(ended)
            if not ended or len(self.returns) < EPISODES or sum(self.returns) / EPISODES < threshold:
                return True
            training_seconds = time.perf_counter() - training_started
            result.update(
                env_steps=self.num_timesteps, seconds=time.time() - started, training_seconds=training_seconds
            )
            return False

    model = PPO("MlpPolicy", envs, seed=seed, **settings)
    training_started = time.perf_counter()
    model.learn(total, callback=StopAtThreshold())
    envs.close()
    return {**result, "version": f"stable-baselines3 {stable_baselines3.__version__}"}


def _linear(initial: float) -> Any:
    return lambda remaining: remaining * initial


def _wide_policy() -> dict[str, Any]:
    from torch import nn

    sizes = {"pi": [256, 256], "vf": [256, 256]}
    return {"log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU, "net_arch": sizes}


if __name__ == "__main__":
    print(json.dumps(learn(**json.loads(sys.argv[1]))))  # noqa: T201
