"""Body of an environment process."""

import contextlib
import faulthandler
import os
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from envpool_bridge.envs.kept_modules import import_from
from envpool_bridge.errors import EnvPoolError
from envpool_bridge.faults import failpoint
from envpool_bridge.worker.process_tuning import collect_garbage_rarely, wake_on_time
from envpool_bridge.worker.worker import NUM_DESCRIPTORS, STACK_SIGNAL, ErrorMessage, Worker, WorkerConfig


def _make_worker(config: WorkerConfig, connection: Connection, descriptors: Sequence[int]) -> Worker:
    import_from(config.modules)
    with contextlib.suppress(OSError):  # a sandbox may forbid it; environments that sleep then sleep slightly longer
        wake_on_time()
    cores = config.options.cores
    if cores:  # before anything starts threads
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[cores[config.worker % len(cores)]]})
    if not config.local_policy:
        return Worker(config, connection, descriptors)
    from envpool_bridge.worker.acting_worker import ActingWorker  # it imports this module

    return ActingWorker(config, connection, descriptors[:NUM_DESCRIPTORS], descriptors[NUM_DESCRIPTORS:])


def main(descriptors: Sequence[int]) -> None:
    """Runs a forked worker; reports any exception to the parent before it raises it.

    Args:
        descriptors: segment, connection, own doorbell, file for stacks, board, inference doorbell, learner doorbell;
            then the local policy's.
    """
    # The parent reads this file, and reports its content.
    faulthandler.enable(descriptors[3])
    faulthandler.register(STACK_SIGNAL, descriptors[3])  # even when an environment hangs in C
    connection = Connection(descriptors[1])
    worker: Worker | None = None
    try:
        config: WorkerConfig = connection.recv()
        worker = _make_worker(config, connection, descriptors)
        failpoint.arm(failpoint.wanted(), worker.failpoints())
        collect_garbage_rarely()
        worker.serve()
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        # Other errors, such as SystemExit, say nothing without their class.
        said = (
            str(error) if isinstance(error, EnvPoolError) else "".join(traceback.format_exception_only(error)).strip()
        )
        try:
            connection.send(ErrorMessage(type(error).__name__, said, text))
        except OSError:
            traceback.print_exc()
        if worker is not None:
            worker.close()
        raise
