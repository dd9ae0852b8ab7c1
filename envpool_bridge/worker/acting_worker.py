"""A worker that also acts: it owns a policy, and posts actions right after an observation."""

import pickle
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection

from envpool_bridge.shm.slots import ActRows, each_step
from envpool_bridge.worker.policy import LocalPolicy, MakeLocalPolicy
from envpool_bridge.worker.worker import Part, Worker, WorkerConfig


class ActingWorker(Worker):
    """An environment process with a policy. Process-safety: as Worker, and the only writer of its lanes' `acted`.

    Args:
        config: Configuration from the parent, with a local policy.
        connection: Connection to the parent.
        descriptors: Descriptors, as for Worker.
        own: descriptors for the policy.
    """

    def __init__(
        self, config: WorkerConfig, connection: Connection, descriptors: Sequence[int], own: Sequence[int]
    ) -> None:
        # The policy comes first: it configures jax in this process, and an environment may import jax too.
        make: MakeLocalPolicy = pickle.loads(config.local_policy)
        shape = config.layout.shape
        parts = {part: shape.part_rows(part) for part in shape.parts_of_worker(config.worker)}
        first = config.options.first_row
        rows = {part: range(first + columns.start, first + columns.stop) for part, columns in parts.items()}
        self._policy: LocalPolicy = make(config.layout, config.worker, rows, own)
        super().__init__(config, connection, descriptors)
        views = partial(each_step, self._slots, shape.rollout_length, len(parts))
        self._act_rows: dict[int, Sequence[ActRows]] = {
            part: views(partial(self._access.act_rows, rows=columns)) for part, columns in parts.items()
        }

    def _has_actions(self, part: Part) -> bool:
        return self._policy.may_act(part.step // self._rollout_length)

    def _advance(self, part: Part) -> bool:
        if part.opening is None:
            step = part.step
            if not self._policy.act(part.part, step, self._act_rows[part.part][step % self._window]):
                return False
            self._counters.post_actions(part.lane, step)
        return super()._advance(part)
