"""Learner on the device: environments, policy and learner state together, advanced by several updates per dispatch."""

import time

import jax
import numpy as np

from agents.api import Agent, LearnerState, Metrics
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.device_loop.checkpoint_rows import rows_from_arrays, rows_to_arrays
from jaxsrl.device_loop.collect import DeviceRows, init_rows
from jaxsrl.device_loop.episode_totals import EpisodeSums, clear_finished
from jaxsrl.device_loop.program import RunKeys, compile_advance, place_keys
from jaxsrl.envs.protocol import JaxEnv
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.metrics.episodes import EpisodeTotals
from jaxsrl.replay.state import replace_learned

_LEAST_SECONDS = 0.1
_MOST_SECONDS = 0.5


class DispatchSize:
    """Updates per dispatch, doubled until a dispatch takes 0.1 s and halved if one takes more than 0.5 s.

    A dispatch then hides the host's cost, and the host still reacts to signals and writes records.

    Attributes:
        updates: updates of the next dispatch, unless something is due earlier.
    """

    def __init__(self) -> None:
        self.updates = 1

    def next_size(self, done: int, total: int, every: int) -> int:
        """Returns the updates of the next dispatch.

        Args:
            done: updates done.
            total: updates of the run, more than `done`.
            every: a dispatch ends at each multiple of it, where a checkpoint is due; 0 for never.
        """
        left = min(self.updates, total - done)
        return min(left, every - done % every) if every else left

    def record(self, updates: int, seconds: float) -> None:
        """Adapts to the duration of a dispatch of `updates`; a shortened one is ignored."""
        if updates < self.updates:
            return
        if seconds < _LEAST_SECONDS:
            self.updates *= 2
        elif seconds > _MOST_SECONDS:
            self.updates = max(1, self.updates // 2)


class RowsLearner(AnyLearner):
    """Base class of learners on the device that own the rows too: `DeviceLearner`, and members of a group of seeds."""

    def advance(self, num_updates: int, every: int) -> None:
        """Runs one dispatch of as many updates as `DispatchSize` advises.

        Args:
            num_updates: update at which the dispatch ends at the latest.
            every: a dispatch also ends at each multiple of it, where a checkpoint is due; 0 for never.
        """
        raise NotImplementedError

    def take_episodes(self, totals: EpisodeTotals) -> None:
        """Moves the episodes that finished since the last call into `totals`."""
        raise NotImplementedError

    def save_arrays(self) -> Arrays:
        """Returns all rows by name ("rows...") for a checkpoint. With `state`, they continue the run bit for bit."""
        raise NotImplementedError


class DeviceLearner(RowsLearner):
    """Owner of the learner state and of all rows. Thread-safety: one thread.

    Update n uses the keys that it has under every other plan at lag 0, so it produces the same parameters.
    The constructor compiles the program. The next `step` donates `state`. `stats.busy_seconds` are those of dispatches, and the
    policy lag is always 0.

    Args:
        agent: agent that acts and learns.
        env: environment of every row.
        mesh: mesh of devices, whose number divides the number of rows.
        rollout_length: T.
        state: state after `state.num_updates` updates.
        keys: result of `make_run_keys`, which defines the number of rows.
        saved: result of `save_arrays` after the same number of updates, possibly with other arrays; None starts new episodes.
        watch: counter of non-finite updates; None for none.

    Attributes:
        dispatch_size: updates per dispatch.

    Raises:
        UserError: `saved` is of another environment or agent, or of another number of rows.
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
        super().__init__(int(state.num_updates))
        self._mesh, self._watch = mesh, watch
        self._keys = place_keys(mesh, keys)
        self._rows = place_rows(agent, env, mesh, self._keys, saved, self.num_updates * rollout_length)
        self.state = mesh.place_state(state)
        # Compiled here, so that `step` measures only computation.
        self._advance = compile_advance(env, agent, mesh, rollout_length, self.state, self._rows, self._keys)
        clear = jax.jit(clear_finished, donate_argnums=0, out_shardings=mesh.leading_rows)
        self._clear = clear.lower(self._rows.episodes).compile()
        self.dispatch_size = DispatchSize()

    def step(self, num_updates: int) -> Metrics:
        """Collects and updates `num_updates` times (at least once) in one dispatch, and waits for it.

        Returns:
            The metrics of the last update, on the device.
        """
        start = time.perf_counter()
        self.state, self._rows, self.metrics, counts = self._advance(
            np.int32(num_updates), self.state, self._rows, self._keys
        )
        jax.block_until_ready((self.state, self._rows, self.metrics, counts))
        seconds = time.perf_counter() - start
        self.num_updates += num_updates
        self.stats.updates += num_updates
        self.stats.busy_seconds += seconds
        self.dispatch_size.record(num_updates, seconds)
        if self._watch is not None:
            self.too_many_nonfinite = self._watch.observe_all(counts, num_updates)
            self._watch.count_in(self.stats)
        return self.metrics

    def advance(self, num_updates: int, every: int) -> None:
        self.step(self.dispatch_size.next_size(self.num_updates, num_updates, every))

    def restore_learned(self, learned: LearnerState) -> None:
        self.state = self._mesh.place_state(replace_learned(self.state, learned))
        self.too_many_nonfinite = False

    def take_episodes(self, totals: EpisodeTotals) -> None:
        sums: EpisodeSums = self._rows.episodes
        count, return_sum, return_max, length_sum = jax.device_get(
            (sums.count, sums.return_sum, sums.return_max, sums.length_sum)
        )
        if not count.any():
            return
        totals.add_rows(count, return_sum, return_max, length_sum)
        rows = self._rows
        self._rows = DeviceRows(rows.envs, rows.agent_state, self._clear(sums))

    def save_arrays(self) -> Arrays:
        return rows_to_arrays(self._rows)


def place_rows(
    agent: Agent, env: JaxEnv, mesh: LearnerMesh, keys: RunKeys, saved: Arrays | None, num_steps: int
) -> DeviceRows:
    """Returns the rows of a new or resumed run, in memory of their own, which may be donated.

    Args:
        agent: agent that acts.
        env: environment of every row.
        mesh: mesh of devices.
        keys: keys of the run.
        saved: rows of a checkpoint; None starts new episodes.
        num_steps: steps of each row before. An episode takes at least one, so no earlier one has this number, which its key
            follows from.
    """
    first = jax.jit(
        lambda row_keys: init_rows(env, agent, row_keys, num_steps),
        out_shardings=mesh.leading_rows,
        compiler_options=compiler_options(mesh.devices[0].platform),
    )
    initial = first(keys.rows)
    return initial if saved is None else mesh.place_rows(rows_from_arrays(initial, saved))
