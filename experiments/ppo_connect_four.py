"""PPO on connect four against past selves: prioritized fictitious self-play (Schulman et al. 2017, Vinyals et al. 2019)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from agents.transforms.normalization import NormalizationConfig
from agents.transforms.self_play import SelfPlayConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli
from jaxsrl.population.policies import PoliciesConfig

EXPERIMENT = Experiment(
    env=EnvConfig("connect_four", suite="pgx", kwargs='{"two_agents": true}'),
    network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
    agent=PPOConfig(
        learning_rate=1e-3,
        learning_rate_schedule=ScheduleConfig("linear"),
        clip_epsilon=0.1,
        entropy_coef=0.1,
        num_minibatches=8,
        normalization=NormalizationConfig(rewards=True),
    ),
    policies=PoliciesConfig(self_play=SelfPlayConfig(slots=4, library_size=50, opponents="hard", reslot_every=10)),
    run=RunConfig(
        plan="device_only",
        num_envs=128,
        rollout_length=32,
        max_policy_lag=0,
        total_env_steps=6_000_000,
        eval=EvalConfig(final_episodes=0),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
