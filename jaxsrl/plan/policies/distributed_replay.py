"""distributed_replay: actor processes with a copy of the policy each, experience on the host, one learner that draws from it.

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
    """The actors of `single_learner_coarse`, whose trajectories go into the host's memory whatever `replay_on` says.

    With `max_policy_lag` 2 or more actors never wait for the learner unless it falls so many trajectories behind.

    Raises:
        UserError: the rows do not divide, or workers are asked to share a lane.
    """
    coarse = single_learner_coarse(run, resources)
    *actors, learner = coarse.fragments
    return dataclasses.replace(
        coarse,
        policy="distributed_replay",
        fragments=(*actors, Fragment(REPLAY, FragmentKind.REPLAY, 1, InProcess()), learner),
        channels=replay_channels(coarse.channels, learner.name, on_host=True),
    )
