"""Rainbow on an Atari game with the settings of its paper, and 7 GB of host memory (Hessel et al. 2018, table 1)."""

from agents.dqn import DQNConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, ReplayMemoryConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5", kwargs='{"terminal_on_life_loss": true}'),
    network=NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu"),
    agent=DQNConfig(
        # 32 transitions every 4 env steps.
        replay=ReplayConfig(
            capacity=1_000_000, batch_size=32, min_size=20_000, gradient_steps_per_env_step=0.25, priority_exponent=0.5
        ),
        epsilon_start=0.0,
        epsilon_end=0.0,
        learning_rate=6.25e-5,
        n_step=3,
        target_update_period=2_000,  # 8,000 env steps
        double=True,
        dueling=True,
        noisy=True,
        value_type="c51",
        reward_clip=1.0,
    ),
    run=RunConfig(
        num_envs=16,
        rollout_length=16,
        total_env_steps=10_000_000,
        eval=EvalConfig(final_episodes=10),
        replay=ReplayMemoryConfig(memory="host"),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
