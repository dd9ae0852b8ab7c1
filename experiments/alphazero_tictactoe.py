"""Gumbel AlphaZero on tic-tac-toe, which it learns to play without a loss."""

from agents.alphazero import AlphaZeroConfig
from agents.search.gumbel import GumbelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("tic_tac_toe", suite="pgx", kwargs='{"with_state": true}'),
    network=NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
    agent=AlphaZeroConfig(
        replay=ReplayConfig(capacity=50_000, batch_size=32, min_size=2_000, gradient_steps_per_env_step=0.0625),
        gumbel=GumbelConfig(num_simulations=25, value_scale=1.0),
        random_moves=0.2,
        window=10,
        learning_rate=3e-3,
    ),
    run=RunConfig(
        plan="device_only", num_envs=64, rollout_length=16, total_env_steps=200_000, eval=EvalConfig(final_episodes=0)
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
