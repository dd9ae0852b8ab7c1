"""Training from environment hosts: as on one machine, but for where trajectories come from."""

import contextlib
from collections.abc import Callable

from jaxsrl.cluster.engine import Engine
from jaxsrl.cluster.source import ClusterSource
from jaxsrl.runtime.host_training import HostTraining
from jaxsrl.runtime.source import SourceConfig, TrajectorySource
from jaxsrl.runtime.training import TrainingSetup


class ClusterTraining(HostTraining):
    """A run whose environments are on the nodes of a cluster. Owns its engine from the first trajectory on."""

    def __init__(
        self, setup: TrainingSetup, open_engine: Callable[[], contextlib.AbstractContextManager[Engine]]
    ) -> None:
        """Nothing starts yet."""
        super().__init__(setup)
        self._open_engine = open_engine
        self._opened = contextlib.ExitStack()

    def make_source(self, config: SourceConfig) -> TrajectorySource:
        """Environment hosts, one a replica of the plan."""
        return ClusterSource(config, self._opened.enter_context(self._open_engine()))

    def close(self) -> None:
        """Ends the hosts, then lets go of the cluster."""
        with self._opened:
            super().close()
