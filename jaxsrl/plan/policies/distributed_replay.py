"""Plan `distributed_replay`: actor processes with a policy copy each, replay in host memory, one learner.

The shape of Ape-X (Horgan et al. 2018) and R2D2 (Kapturowski et al. 2019).
"""

import dataclasses

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Fragment, FragmentKind, InProcess
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies.channels import REPLAY, replay_channels
from jaxsrl.plan.policies.single_learner_coarse import single_learner_coarse


def distributed_replay(run: RunConfig, resources: Resources) -> Plan:
    """Returns the plan `single_learner_coarse` with replay in host memory, whatever `replay.memory` is.

    With a `max_policy_lag` of 2 or more, actors wait only for a learner that is that many trajectories behind.

    Raises:
        UserError: the rows do not divide, or `workers_per_lane` is not 1.
    """
    coarse = single_learner_coarse(run, resources)
    *actors, learner = coarse.fragments
    return dataclasses.replace(
        coarse,
        name="distributed_replay",
        fragments=(*actors, Fragment(REPLAY, FragmentKind.REPLAY, 1, InProcess()), learner),
        channels=replay_channels(coarse.channels, learner.name, on_host=True),
    )
