"""A learner whose experience is a dataset."""

from agents.api import LearnerState, ReplayAgent
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.host_replay import HostReplay, HostReplayMesh
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.learner.offline import OfflineLearner, OfflineReplay
from jaxsrl.plan.placement import devices_of
from jaxsrl.training.dataset_replay import make_fixed_client
from jaxsrl.training.run_state import init_state, restore_state, state_to_arrays
from jaxsrl.training.setup import TrainingSetup
from jaxsrl.training.trainable import Trainable


class OfflineTrainable(Trainable):
    """The plan `offline`. Draws depend on the run's seed and the update, so that a checkpoint holds the learner state alone.

    Args:
        setup: Setup of the run.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup
        self._initial: LearnerState | None = None
        self._learner: OfflineLearner | None = None
        self._replay: HostReplay | None = None

    def rows_fit(self, arrays: Arrays) -> bool:
        return True

    def restore_or_init(self, arrays: Arrays | None) -> int:
        agent, key = self._setup.agent, self._setup.keys.init
        state = init_state(agent, key) if arrays is None else restore_state(agent, key, arrays)
        self._initial = state
        return int(state.num_updates)

    def start(self) -> AnyLearner:
        setup = self._setup
        assert isinstance(setup.agent, ReplayAgent)
        limit = setup.config.stall_timeout_seconds
        mesh, dataset = HostReplayMesh(devices_of(setup.plan.learner)), setup.config.dataset
        joins = len(mesh.devices) == 1
        client = make_fixed_client(dataset, setup.agent.data, setup.agent, setup.spec, limit, joins)
        self._replay = OfflineReplay(setup.agent, mesh, setup.keys.update, client)
        watch = FiniteWatch(setup.config.learner.max_nonfinite_updates)
        self._learner = OfflineLearner(self._replay, self.final_state(), watch)
        self._initial = None
        return self._learner

    def step(self) -> bool:
        assert self._learner is not None
        self._learner.step()
        return True

    def final_state(self) -> LearnerState:
        if self._initial is not None:
            return self._initial
        assert self._learner is not None
        return self._learner.state

    def to_arrays(self) -> Arrays:
        return state_to_arrays(self.final_state())

    def episode_metrics(self) -> dict[str, float]:
        return {}

    def totals(self) -> dict[str, float]:
        return {} if self._replay is None else self._replay.totals()

    def close(self, failure: BaseException | None) -> None:
        if self._replay is not None:
            self._replay.close()
