"""DDPG on Pendulum-v1 (Lillicrap et al. 2016)."""

from agents.ddpg import DDPGConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("Pendulum-v1"),
    network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
    agent=DDPGConfig(
        # One gradient step on 128 transitions for each env step.
        replay=ReplayConfig(capacity=50_000, batch_size=128, min_size=1_000, gradient_steps_per_env_step=1.0),
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
    ),
    run=RunConfig(
        num_envs=8,
        rollout_length=4,
        total_env_steps=20_000,
        checkpoint=CheckpointConfig(interval_updates=0),
        eval=EvalConfig(final_episodes=50),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
