"""IMPALA on any environment, with acting parameters one update old: --env.id ID (Espeholt et al. 2018)."""

from agents.impala import IMPALAConfig
from agents.networks.config import IMAGE_TORSOS
from agents.networks.for_spec import network_for
from agents.networks.observation_scale import normalized_leaves
from agents.ops.schedules import ScheduleConfig
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.spec.specs import has_floats
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig, make_env
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("CartPole-v1")) -> Experiment:
    """Returns IMPALA with settings for the observations of the environment: images, or others."""
    spec = make_env(env).spec()
    network = network_for(spec, NetworkConfig(hidden_sizes=(64, 64)))
    has_images = network.torso in IMAGE_TORSOS
    normalization = NormalizationConfig(observations=bool(normalized_leaves(spec)), rewards=True)
    agent = IMPALAConfig(
        learning_rate=6e-4 if has_images else 2e-3,
        learning_rate_schedule=ScheduleConfig("linear"),
        entropy_coef=0.0 if has_floats(spec.action) else 0.01,
        normalization=normalization,
    )
    run = RunConfig(
        num_envs=32,
        rollout_length=20,
        total_env_steps=10_000_000 if has_images else 1_000_000,
        eval=EvalConfig(final_episodes=20),
    )
    return Experiment(env, agent, network, run)


if __name__ == "__main__":
    cli(make_experiment)
