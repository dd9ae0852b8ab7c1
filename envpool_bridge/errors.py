"""Errors that this package raises deliberately. Each message says what was expected, what was received and what to do."""

import multiprocessing


class EnvPoolError(Exception):
    """Base class of the errors of the environment side."""


class UserError(EnvPoolError, ValueError):
    """Invalid configuration or call, raised before any process starts. Commands exit with status 2."""


class UnsupportedSpaceError(UserError):
    """Observation or action space with a leaf that cannot be stored. The message names the path of the leaf."""


class BadEnvOutputError(EnvPoolError):
    """Environment output that violates its spaces. The message names row, field, expected and received value."""


class LayoutMismatchError(EnvPoolError):
    """Attempt to attach a segment that was created with a different layout, format or run."""


class SegmentTooLargeError(EnvPoolError):
    """Shared memory request that the operating system cannot satisfy."""


class WorkerError(EnvPoolError):
    """Exception of an environment in a worker. Carries the environment id, the row, the step and the original traceback."""


class WorkerDiedError(EnvPoolError):
    """Unexpected exit of a worker process. The message decodes its exit status."""


class TooManyFailedEnvsError(EnvPoolError):
    """Too few working environments left. The message ends with the last failure."""


class WaitTimeoutError(EnvPoolError, multiprocessing.TimeoutError):
    """Timeout of a bounded wait. Vector environments of Gymnasium raise its base `multiprocessing.TimeoutError`."""


class PoolClosedError(EnvPoolError):
    """Use of a pool after `close()`."""
