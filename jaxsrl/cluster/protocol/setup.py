"""Setup of an environment host, as bytes: everything from which the collectors of its machine are made."""

import dataclasses
import pickle
import socket
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.errors import UserError
from jaxsrl.collect.acting_agent import acting_agent, read_jax_settings, use_jax_settings
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.config.serialization import differences
from jaxsrl.machine.provenance import read_code


@dataclasses.dataclass(frozen=True)
class HostSetup:
    """One incarnation of one environment host.

    Attributes:
        config: Configuration of the run's sources, its key of actions apart; the environments may be those that follow a lost
            host.
        replica: Replica of the plan's environments, which this host has.
        key_data: Data of the run's key of actions, uint32.
        key_impl: name of that key's implementation.
        jax_settings: jax settings of the learner's process, by name.
        code: Code of the learner's process; see `read_code`.
        first_version: Version of the first parameters; the others follow one by one.
        reset: Reset of all rows of the run; those of other hosts are ignored.
        incarnation: number of earlier starts of this host or server.
    """

    config: CollectorConfig
    replica: int
    key_data: np.ndarray
    key_impl: str
    jax_settings: Mapping[str, Any]
    code: Mapping[str, str]
    first_version: int
    reset: EpisodeReset
    incarnation: int


def load_setup(data: bytes) -> Any:
    """Returns the HostSetup or ReplaySetup with these bytes, after jax was set up as in the learner's process.

    Raises:
        UserError: this process has other code than the learner's.
    """
    setup = pickle.loads(data)
    if lines := differences(dict(setup.code), dict(read_code())):
        raise UserError(
            f"the code on {socket.gethostname()} is not that of the learner (theirs -> its): {', '.join(lines)}; install the "
            f"same there"
        )
    use_jax_settings(setup.jax_settings)
    return setup


def make_setup(
    config: CollectorConfig, replica: int, first_version: int, reset: EpisodeReset, incarnation: int
) -> HostSetup:
    """Returns the setup of host number `replica`; as HostSetup's attributes."""
    key = config.act_key
    sent = dataclasses.replace(config, act_key=None, agent=acting_agent(config.agent))  # pyright: ignore
    return HostSetup(
        config=sent,
        replica=replica,
        key_data=np.asarray(jax.random.key_data(key)),
        key_impl=str(jax.random.key_impl(key)),
        jax_settings=read_jax_settings(),
        code=read_code(),
        first_version=first_version,
        reset=reset,
        incarnation=incarnation,
    )
