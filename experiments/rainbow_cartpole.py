"""Rainbow, every option of DQN at once, on CartPole-v1 (Hessel et al. 2018)."""

from agents.dqn import DQNConfig
from agents.ops.schedules import ScheduleConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
    agent=DQNConfig(
        # Sizes of a small task; what is learned, and how, is Rainbow's. Returns of up to 100 steps of reward 1.
        replay=ReplayConfig(
            capacity=50_000, batch_size=64, min_size=1_000, gradient_steps_per_env_step=0.25, priority_exponent=0.5
        ),
        epsilon_start=0.0,
        epsilon_end=0.0,
        learning_rate=1e-3,
        learning_rate_schedule=ScheduleConfig("linear"),
        n_step=3,
        target_update_period=100,
        double=True,
        dueling=True,
        noisy=True,
        value_type="c51",
        v_min=0.0,
        v_max=100.0,
    ),
    run=RunConfig(num_envs=16, rollout_length=16, total_env_steps=100_000, eval=EvalConfig(final_episodes=50)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
