"""Stochastic MuZero on the game 2048, where a tile appears at random after each move."""

from agents.ops.schedules import ScheduleConfig
from agents.search.puct import PUCTConfig
from agents.stochastic_muzero import StochasticMuZeroConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("2048", suite="pgx"),
    network=NetworkConfig(hidden_sizes=(256,), activation="relu", layer_norm=True),
    agent=StochasticMuZeroConfig(
        replay=ReplayConfig(
            capacity=200_000, batch_size=256, min_size=10_000, gradient_steps_per_env_step=1 / 32, priority_exponent=1.0
        ),
        puct=PUCTConfig(num_simulations=32),
        value_limit=200,
        discount=0.999,
        learning_rate=1e-3,
        learning_rate_schedule=ScheduleConfig("linear", end=0.1),
    ),
    run=RunConfig(
        plan="device_only",
        num_envs=64,
        rollout_length=32,
        total_env_steps=300_000,
        eval=EvalConfig(final_episodes=50),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
