"""What is known of the probe environments, and the run in turn that learns it."""

from envpool_bridge.envs.config import EnvConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

DISCOUNT = 0.9
# observation -> optimal value, as each probe's docstring derives it
VALUES = {
    "ConstantReward": {0.0: 1.0},
    "PredictableReward": {-1.0: -1.0, 1.0: 1.0},
    "DiscountedReward": {0.0: DISCOUNT, 1.0: 1.0},
    "ActionReward": {0.0: 1.0},
    "MatchObservation": {-1.0: 1.0, 1.0: 1.0},
    "EndsByTask": {0.0: 1.0},
    "EndsByClock": {0.0: 1.0 / (1.0 - DISCOUNT)},
}
BEST_ACTIONS = {"ActionReward": {0.0: 1}, "MatchObservation": {-1.0: 0, 1.0: 1}}


def probe_source(probe, kwargs="{}"):
    """Returns the environments of a probe."""
    return EnvConfig(probe, suite="probe", kwargs=kwargs).source()


def trained(directory, source, make_agent, *, rows, steps, updates, plan="serial", **changes):
    """(spec, agent, parameters) after so many updates on trajectories of `steps` steps of `rows` environments at policy lag 0."""
    spec = source.spec()
    agent = make_agent(spec)
    config = run_config(
        plan=plan,
        directory=str(directory),
        num_envs=rows,
        rollout_length=steps,
        total_env_steps=rows * steps * updates,
        max_policy_lag=0,
        checkpoint_interval_updates=0,
        **changes,
    )
    report = run(PLANS[plan](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)
    return spec, agent, report.state.params
