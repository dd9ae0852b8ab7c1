"""The device's learner: environments, policy and learner state together, advanced by several updates a dispatch."""

import time

import jax
import numpy as np

from agents.api import Agent, LearnerState, Metrics
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.device_loop.checkpoint_rows import rows_from_arrays, rows_to_arrays
from jaxsrl.device_loop.collect import DeviceRows, init_rows
from jaxsrl.device_loop.dispatch_size import DispatchSize
from jaxsrl.device_loop.episode_totals import EpisodeSums, clear_finished
from jaxsrl.device_loop.program import RunKeys, compile_advance, place_keys
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.loop import LearnerStats
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.metrics.episodes import EpisodeTotals
from jaxsrl.replay.state import with_learnt


class DeviceLearner:
    """Owner of the learner state and of all rows. Thread-safety: one thread.

    Update n is computed with the keys that it has under every other plan at lag 0, so the parameters are theirs.

    Attributes:
        state: newest learner state, on the mesh; the next `step` donates it.
        num_updates: updates that made it.
        metrics: of the newest update, still on the device.
        stats: totals; `busy_seconds` are those of dispatches, the policy lag is always 0.
        pace: how many updates a dispatch should have.
        is_stuck: whether the last update of as many dispatches as `watch` allows was left out.
    """

    def __init__(
        self,
        agent: Agent,
        env: JaxEnv,
        mesh: LearnerMesh,
        rollout_length: int,
        state: LearnerState,
        keys: RunKeys,
        saved: Arrays | None = None,
        watch: FiniteWatch | None = None,
    ) -> None:
        """A learner that continues from `state`; compiles.

        Args:
            agent: what acts and learns.
            env: environment of every row.
            mesh: to run on; the number of its devices divides the number of rows.
            rollout_length: T.
            state: after `state.num_updates` updates.
            keys: of `make_run_keys`, which says how many rows there are.
            saved: what `save_arrays` gave after as many updates, perhaps among other arrays; None begins episode 0.
            watch: of updates that were left out, which sees the last one of each dispatch; None looks at none.

        Raises:
            UserError: `saved` is of another environment or agent, or of another number of rows.
        """
        self._mesh, self._watch = mesh, watch
        self._keys = place_keys(mesh, keys)
        self._rows = _placed_rows(agent, env, mesh, self._keys, saved)
        self.state = mesh.place_state(state)
        self.num_updates = int(state.num_updates)
        # Compiled here, so that what `step` measures is computing.
        self._advance = compile_advance(env, agent, mesh, rollout_length, self.state, self._rows, self._keys)
        clear = jax.jit(clear_finished, donate_argnums=0, out_shardings=mesh.leading_rows)
        self._clear = clear.lower(self._rows.episodes).compile()
        self.metrics: Metrics = {}
        self.stats = LearnerStats()
        self.dispatch_size = DispatchSize()
        self.is_stuck = False

    def step(self, num_updates: int) -> Metrics:
        """Collects and updates `num_updates` times (at least once) in one dispatch, and waits for it.

        Returns:
            The metrics of the last update, on the device.
        """
        start = time.perf_counter()
        self.state, self._rows, self.metrics = self._advance(np.int32(num_updates), self.state, self._rows, self._keys)
        jax.block_until_ready((self.state, self._rows, self.metrics))
        seconds = time.perf_counter() - start
        self.num_updates += num_updates
        self.stats.updates += num_updates
        self.stats.busy_seconds += seconds
        self.dispatch_size.record(num_updates, seconds)
        if self._watch is not None:
            self.is_stuck = self._watch.observe(self.metrics, (), wait=True)
            self.stats.skipped = self._watch.skipped
        return self.metrics

    def advance(self, num_updates: int, every: int) -> None:
        """Runs one dispatch of as many updates as `dispatch_size` advises.

        Args:
            num_updates: of the run, where a dispatch ends.
            every: a dispatch also ends at each multiple of it, where a checkpoint is due; 0 for never.
        """
        self.step(self.dispatch_size.next_size(self.num_updates, num_updates, every))

    def continue_from(self, learnt: LearnerState) -> None:
        """As `jaxsrl.learner.loop.Learner.continue_from`."""
        self.state = self._mesh.place_state(with_learnt(self.state, learnt))
        self.is_stuck = False

    def take_episodes(self, totals: EpisodeTotals) -> None:
        """Moves the episodes that finished since the last call from the device into `totals`."""
        sums: EpisodeSums = self._rows.episodes
        count, return_sum, return_max, length_sum = jax.device_get(
            (sums.count, sums.return_sum, sums.return_max, sums.length_sum)
        )
        finished = int(count.sum(dtype=np.int64))
        if not finished:
            return
        length = int(length_sum.sum(dtype=np.int64))
        totals.add_totals(finished, float(return_sum.sum(dtype=np.float64)), float(return_max.max()), length)
        rows = self._rows
        self._rows = DeviceRows(rows.envs, rows.agent_state, self._clear(sums))

    def save_arrays(self) -> Arrays:
        """All rows by name ("rows..."), for a checkpoint: together with `state` they continue the run to the bit."""
        return rows_to_arrays(self._rows)


def _placed_rows(agent: Agent, env: JaxEnv, mesh: LearnerMesh, keys: RunKeys, saved: Arrays | None) -> DeviceRows:
    """The rows of a beginning or of a resumed run, in memory of their own, which the program may be given."""

    def first(run_keys: RunKeys) -> DeviceRows:
        return init_rows(env, agent, run_keys.rows)

    begun = jax.jit(first, out_shardings=mesh.leading_rows)(keys)
    return begun if saved is None else mesh.place_rows(rows_from_arrays(begun, saved))
