"""Gumbel MuZero on CartPole-v1."""

from agents.muzero import MuZeroConfig
from agents.ops.schedules import ScheduleConfig
from agents.search.gumbel import GumbelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(128,), activation="relu", layer_norm=True),
    agent=MuZeroConfig(
        replay=ReplayConfig(
            capacity=50_000, batch_size=256, min_size=2_000, gradient_steps_per_env_step=0.25, priority_exponent=0.6
        ),
        gumbel=GumbelConfig(num_simulations=16),
        value_limit=20,
        learning_rate=3e-3,
        learning_rate_schedule=ScheduleConfig("linear", end=0.1),
    ),
    run=RunConfig(num_envs=16, rollout_length=16, total_env_steps=100_000, eval=EvalConfig(final_episodes=50)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
