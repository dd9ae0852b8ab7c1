"""DQN, double, dueling, prioritized and with three steps, on CartPole-v1 (Mnih et al. 2015)."""

from agents.dqn import DQNConfig
from agents.ops.epsilon_greedy import Exploration
from jaxsrl import EnvConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

# Other value distributions and exploration: --agent.value c51 or quantile, --agent.noisy
EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
    agent=DQNConfig(
        replay=ReplayConfig(
            capacity=50_000, batch_size=64, min_size=1_000, samples_per_insert=16.0, priority_exponent=0.6
        ),
        exploration=Exploration(initial=1.0, final=0.04, fraction=0.2),
        learning_rate=1e-3,
        learning_rate_schedule="linear",
        num_steps=3,
        target_period=100,
        double=True,
        dueling=True,
        value_low=0.0,
        value_high=100.0,
    ),
    run=RunConfig(num_envs=16, rollout_length=16, env_steps=100_000, evaluation_episodes=50),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
