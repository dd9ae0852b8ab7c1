"""DQN, double, dueling, prioritized and with three steps, on CartPole-v1 (Mnih et al. 2015)."""

from agents.dqn import DQNConfig
from agents.ops.schedules import ScheduleConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

# Other value distributions and exploration: --agent.value-type c51 or quantile, --agent.noisy
EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
    agent=DQNConfig(
        replay=ReplayConfig(
            capacity=50_000, batch_size=64, min_size=1_000, gradient_steps_per_env_step=0.25, priority_exponent=0.6
        ),
        epsilon_start=1.0,
        epsilon_end=0.04,
        epsilon_decay_fraction=0.2,
        learning_rate=1e-3,
        learning_rate_schedule=ScheduleConfig("linear"),
        n_step=3,
        target_update_period=100,
        double=True,
        dueling=True,
    ),
    run=RunConfig(num_envs=16, rollout_length=16, total_env_steps=100_000, eval=EvalConfig(final_episodes=50)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
