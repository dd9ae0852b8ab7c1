"""Construction of the plan that a RunConfig names."""

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.load_plan import load_plan
from jaxsrl.plan.plan import Plan


def make_plan(config: RunConfig, resources: Resources | None = None) -> Plan:
    """Returns the plan named by `config.plan` for this configuration and these resources.

    Examples:
        >>> config = RunConfig(plan="serial", num_envs=8, rollout_length=16)
        >>> plan = make_plan(config, Resources(num_cores=2, platform="cpu", num_devices=1))
        >>> [fragment.name for fragment in plan.fragments], plan.num_rows, plan.shape.rollout_length
        (['environments', 'inference', 'learner'], 8, 16)

    Args:
        config: of the run. The plan fits this configuration only.
        resources: of the machine of the run; None for this machine, which initializes its jax devices.

    Raises:
        UserError: there is no such plan, or it does not fit the resources.
    """
    return load_plan(config.plan)(config, Resources.detect() if resources is None else resources)
