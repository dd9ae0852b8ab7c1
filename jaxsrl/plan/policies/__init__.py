"""Distribution policies (MSRL): pure functions from a RunConfig and Resources to a Plan, one a file."""

from collections.abc import Callable

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.central import central
from jaxsrl.plan.policies.decoupled import decoupled
from jaxsrl.plan.policies.dedicated_environments import dedicated_environments
from jaxsrl.plan.policies.device_only import device_only
from jaxsrl.plan.policies.distributed_replay import distributed_replay
from jaxsrl.plan.policies.multiple_learners import multiple_learners
from jaxsrl.plan.policies.serial import serial
from jaxsrl.plan.policies.single_learner_coarse import single_learner_coarse
from jaxsrl.plan.policies.single_learner_fine import single_learner_fine

DistributionPolicy = Callable[[RunConfig, Resources], Plan]

PLANS: dict[str, DistributionPolicy] = {
    "serial": serial,
    "single_learner_coarse": single_learner_coarse,
    "single_learner_fine": single_learner_fine,
    "decoupled": decoupled,
    "multiple_learners": multiple_learners,
    "central": central,
    "device_only": device_only,
    "dedicated_environments": dedicated_environments,
    "distributed_replay": distributed_replay,
}
"""Distribution policies by the name that `--plan` takes."""

REPLAY_PLANS = frozenset({"distributed_replay"})
"""Plans for agents that learn from replay only."""
