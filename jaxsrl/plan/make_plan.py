"""The plan that a RunConfig asks for: its policy, applied to what there is."""

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.load_policy import load_policy
from jaxsrl.plan.plan import Plan


def make_plan(config: RunConfig, resources: Resources | None = None) -> Plan:
    """What `config.policy` makes of this configuration and these resources.

    Examples:
        >>> config = RunConfig(policy="serial", num_envs=8, rollout_length=16)
        >>> plan = make_plan(config, Resources(num_cores=2, platform="cpu", num_devices=1))
        >>> [fragment.name for fragment in plan.fragments], plan.num_rows, plan.shape.rollout_length
        (['environments', 'inference', 'learner'], 8, 16)

    Args:
        config: of the run; the plan is for this one alone.
        resources: of the machine that the run is for; this one, whose jax devices are then initialised, if None.

    Raises:
        UserError: there is no such policy, or what is asked for does not fit the resources.
    """
    return load_policy(config.policy)(config, Resources.detect() if resources is None else resources)
