"""Sampled MuZero on Pendulum-v1: the search chooses among 16 torques that the policy proposes (Hubert et al. 2021)."""

from agents.muzero import MuZeroConfig
from agents.search.gumbel import GumbelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("Pendulum-v1"),
    network=NetworkConfig(hidden_sizes=(128,), activation="relu", layer_norm=True),
    agent=MuZeroConfig(
        replay=ReplayConfig(
            capacity=50_000, batch_size=256, min_size=1_000, gradient_steps_per_env_step=0.5, priority_exponent=0.6
        ),
        gumbel=GumbelConfig(num_simulations=32),
        value_limit=40,
        learning_rate=1e-3,
        discount=0.99,
    ),
    run=RunConfig(num_envs=8, rollout_length=16, total_env_steps=50_000, eval=EvalConfig(final_episodes=50)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
