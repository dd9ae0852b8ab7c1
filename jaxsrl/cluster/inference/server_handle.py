"""What the learner's process knows of one inference server on another node: its calls, and what it has told of itself."""

import dataclasses
import time

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.options import RestartBudget
from envpool_bridge.shm.packed_arrays import ParamsLayout
from jaxsrl.cluster.protocol.engine import Call, Engine, RemoteServer
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.cluster.protocol.setup import make_setup
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.plan.fragment import Devices
from jaxsrl.plan.passes.place_inference import lanes_of_server

_NO_EPISODES = EpisodeReset((), ())


class ServerRecord:
    """One server of a plan, through all of its beginnings. One thread, the learner's.

    Attributes:
        index: of the plan's servers.
        node: that it is on, or was on last.
        remote: the server; None while there is none.
        has_begun: whether it was told to start, since it was spawned.
        started: the call that starts it, until that has ended.
        told: calls that bring versions of the parameters.
        asked: the question for stats that was not answered yet, and when it was put.
        due: when it is to be started again; None unless it is lost.
        lost_at: when it was.
        budget: of starts.
        stats: newest answer of this beginning.
    """

    def __init__(self, config: CollectorConfig, params: ParamsLayout, index: int, node: str) -> None:
        """Not started."""
        options, plan = config.supervision, config.plan
        self.index, self.node = index, node
        lanes, size = lanes_of_server(plan, index), plan.shape.rows_per_lane
        self.rows = slice(lanes.start * size, lanes.stop * size)
        self.remote: RemoteServer | None = None
        self.has_begun = False
        self.started: Call | None = None
        self.told: list[Call] = []
        self.asked: tuple[Call, float] | None = None
        self.due: float | None = None
        self.lost_at = 0.0
        self.budget = RestartBudget(options.max_restarts, options.window_seconds, options.max_backoff_seconds)
        self.stats: dict[str, float] = {}
        # It makes no environment, and remembers nothing of its own: whoever asks brings that along.
        self._config = dataclasses.replace(config, env_source=None, agent_state=None)  # pyright: ignore[reportArgumentType]
        self._params, self._beginnings = params, 0

    @property
    def got_on(self) -> bool:
        """Whether it answered anybody since its last beginning."""
        return self.stats.get("requests", 0.0) > 0.0

    @property
    def gpus(self) -> int:
        """That it takes of its node."""
        placement = self._config.plan.inference.placement
        return int(isinstance(placement, Devices) and placement.platform == "gpu")

    def spawn(self, engine: Engine, node: str) -> None:
        """Begins to start its process."""
        self.node, self.due = node, None
        self.remote = engine.spawn_server(self.index, node, self.gpus)

    def begin(self, versions: PublishedVersions) -> None:
        """Has it begin, with the versions that it may have to act with."""
        if self.remote is None:
            raise RuntimeError("spawn comes first")
        held = versions.held
        setup = make_setup(self._config, self.index, self._params, held[0][0], _NO_EPISODES, self._beginnings)
        self._beginnings += 1
        self.has_begun = True
        self.started = self.remote.call("control", "start", setup.to_bytes())
        for version, put in held:
            self.tell(version, put)

    def tell(self, version: int, put: object) -> None:
        """Sends it a version of the parameters."""
        if self.remote is not None:
            self.told.append(self.remote.call("control", "publish", version, put))

    def ask_for_stats(self) -> None:
        """Puts the question, unless one is under way."""
        if self.remote is not None and self.asked is None:
            self.asked = (self.remote.call("control", "stats"), time.monotonic())

    def calls(self) -> list[Call]:
        """Those that have not been taken in."""
        found = [*self.told]
        found += [self.started] if self.started is not None else []
        found += [self.asked[0]] if self.asked is not None else []
        return found

    def end(self) -> None:
        """Makes sure that it is gone; idempotent."""
        if self.remote is not None:
            self.remote.kill()
        self.remote, self.started, self.asked, self.has_begun = None, None, None, False
        self.told, self.stats = [], {}
        self.lost_at = time.monotonic()

    def described(self) -> str:
        """The server in words, for messages."""
        return f"inference server {self.index} (rows {self.rows.start} to {self.rows.stop - 1}) on node {self.node}"
