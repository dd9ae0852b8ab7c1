"""SAC on any environment with continuous actions: --env.id ID (Haarnoja et al. 2018)."""

from agents.sac import SACConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Pendulum-v1")) -> Experiment:
    """Returns SAC, one gradient step on 256 transitions for each env step."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
        agent=SACConfig(
            replay=ReplayConfig(capacity=1_000_000, batch_size=256, min_size=5_000, gradient_steps_per_env_step=1.0),
            critic_learning_rate=1e-3,
        ),
        run=RunConfig(
            num_envs=8,
            rollout_length=4,
            total_env_steps=1_000_000,
            checkpoint=CheckpointConfig(interval_updates=3_000, max_to_keep=1),
            eval=EvalConfig(final_episodes=20),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
