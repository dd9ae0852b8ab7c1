"""DAgger: BC from the labels of an expert, a run: --env.id ID --imitation.expert RUN@best (Ross et al. 2011)."""

from agents.offline.bc import BCConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("CartPole-v1")) -> Experiment:
    """Returns DAgger with one gradient step for every second label, and all labels in replay."""
    return Experiment(
        env=env,
        network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
        agent=BCConfig(
            replay=ReplayConfig(capacity=200_000, batch_size=256, min_size=1_000, gradient_steps_per_env_step=0.5)
        ),
        run=RunConfig(
            num_envs=8,
            rollout_length=64,
            total_env_steps=20_000,
            checkpoint=CheckpointConfig(interval_updates=10, max_to_keep=1),
            eval=EvalConfig(final_episodes=50),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
