"""DQN on an Atari game, with 7 GB of replay in host memory (Mnih et al. 2015)."""

from agents.dqn import DQNConfig
from jaxsrl import EnvConfig, EvaluationConfig, Experiment, NetworkConfig, ReplayConfig, ReplayMemoryConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5", suite="atari"),
    network=NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu"),
    agent=DQNConfig(
        # 32 transitions every 4 env steps.
        replay=ReplayConfig(capacity=1_000_000, batch_size=32, min_size=50_000, samples_per_insert=8.0),
        epsilon_start=1.0,
        epsilon_end=0.1,
        epsilon_decay_fraction=0.1,
        learning_rate=6.25e-5,
        target_update_period=2_500,
        double=True,
        reward_clip=1.0,
    ),
    run=RunConfig(
        num_envs=16,
        rollout_length=16,
        total_env_steps=10_000_000,
        evaluation=EvaluationConfig(episodes=5),
        replay=ReplayMemoryConfig(memory="host"),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
