"""Errors that this package raises deliberately. Each message says what was expected, what was received and what to do."""


class BridgeError(Exception):
    """Base class of the errors of the environment side."""


class UserError(BridgeError, ValueError):
    """Invalid configuration or call, raised before any process starts. Commands exit with status 2."""


class UnsupportedSpaceError(UserError):
    """Observation or action space with a leaf that cannot be stored. The message names the path of the leaf."""


class BadEnvOutputError(BridgeError):
    """Environment output that violates its spaces. The message names row, field, expected and received value."""


class LayoutMismatchError(BridgeError):
    """Attempt to attach a segment that was created with a different layout, format or run."""


class SegmentTooLargeError(BridgeError):
    """Shared memory request that the operating system cannot satisfy."""


class WorkerError(BridgeError):
    """Exception of an environment in a worker. Carries the environment id, the row, the step and the original traceback."""


class WorkerDiedError(BridgeError):
    """Unexpected exit of a worker process. The message decodes its exit status."""


class QuorumError(BridgeError):
    """Too few working environments left. The message ends with the last failure."""


class WaitTimeoutError(BridgeError):
    """Timeout of a bounded wait."""


class PoolClosedError(BridgeError):
    """Use of a pool after `close()`."""
