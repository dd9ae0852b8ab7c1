"""DQN on an Atari game with Dopamine's settings: sticky actions, whole games, 7 GB of host memory (Castro et al. 2018)."""

from agents.dqn import DQNConfig
from agents.ops.optimizers import OptimizerConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, ReplayMemoryConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5", kwargs='{"repeat_action_probability": 0.25, "noop_max": 0}'),
    network=NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu"),
    agent=DQNConfig(
        # 32 transitions every 4 env steps.
        replay=ReplayConfig(capacity=1_000_000, batch_size=32, min_size=20_000, gradient_steps_per_env_step=0.25),
        epsilon_start=1.0,
        epsilon_end=0.01,
        epsilon_decay_fraction=0.025,  # 250,000 env steps
        eval_epsilon=0.001,
        learning_rate=6.25e-5,
        optimizer=OptimizerConfig(max_grad_norm=None),
        target_update_period=2_000,  # 8,000 env steps
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
