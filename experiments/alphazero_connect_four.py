"""Gumbel AlphaZero on connect four."""

from agents.alphazero import AlphaZeroConfig
from agents.ops.schedules import ScheduleConfig
from agents.search.gumbel import GumbelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("connect_four", suite="pgx", kwargs='{"with_state": true}'),
    network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
    agent=AlphaZeroConfig(
        replay=ReplayConfig(capacity=500_000, batch_size=32, min_size=10_000, gradient_steps_per_env_step=0.0625),
        gumbel=GumbelConfig(num_simulations=32, value_scale=1.0),
        window=21,
        learning_rate=1e-3,
        learning_rate_schedule=ScheduleConfig("linear", end=0.1),
    ),
    run=RunConfig(
        plan="device_only",
        num_envs=128,
        rollout_length=16,
        total_env_steps=8_000_000,
        eval=EvalConfig(final_episodes=0),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
