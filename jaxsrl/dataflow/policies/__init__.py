"""Distribution policies: pure functions from what is wanted and what there is to a plan. One a file."""

from collections.abc import Callable

from jaxsrl.config import RunConfig
from jaxsrl.dataflow.plan import Plan
from jaxsrl.dataflow.policies.serial import serial
from jaxsrl.dataflow.policies.single_learner_fine import single_learner_fine
from jaxsrl.dataflow.resources import Resources

DistributionPolicy = Callable[[RunConfig, Resources], Plan]

POLICIES: dict[str, DistributionPolicy] = {"serial": serial, "single_learner_fine": single_learner_fine}
"""Policies by the name that `--run.policy` takes."""
