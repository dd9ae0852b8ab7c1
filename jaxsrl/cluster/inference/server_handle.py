"""Handle of one inference server on another node."""

import dataclasses

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.packed_arrays import ParamsLayout
from jaxsrl.cluster.handle import Handle
from jaxsrl.cluster.protocol.bundles import SERVERS
from jaxsrl.cluster.protocol.engine import Engine, RemoteServer
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.cluster.protocol.setup import make_setup
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.plan.fragment import Devices
from jaxsrl.plan.passes.place_inference import lanes_of_server

_NO_EPISODES = EpisodeReset((), ())


class ServerHandle(Handle[RemoteServer]):
    """One inference server of a plan."""

    kind = "inference server"
    room = SERVERS
    advice = "--cluster.num-inference-servers"

    def __init__(self, config: CollectorConfig, params: ParamsLayout, index: int, node: str) -> None:
        lanes, size = lanes_of_server(config.plan, index), config.plan.shape.rows_per_lane
        super().__init__(config.supervision, index, node, slice(lanes.start * size, lanes.stop * size))
        # A server makes no environment and holds no recurrent state: each request brings that along.
        self._config = dataclasses.replace(config, env_source=None, agent_state=None)  # pyright: ignore[reportArgumentType]
        self._params = params

    @property
    def made_progress(self) -> bool:
        return self.stats.get("requests", 0.0) > 0.0

    def spawn_process(self, engine: Engine, node: str) -> RemoteServer:
        placement = self._config.plan.inference.placement
        on_gpu = isinstance(placement, Devices) and placement.platform == "gpu"
        return engine.spawn_server(self.index, node, int(on_gpu))

    def start(self, versions: PublishedVersions) -> None:
        """Starts to act, with the versions of the parameters that it may need."""
        first_version = versions.held[0][0]
        setup = make_setup(self._config, self.index, self._params, first_version, _NO_EPISODES, self.incarnation)
        self.start_with(setup.to_bytes(), versions)
