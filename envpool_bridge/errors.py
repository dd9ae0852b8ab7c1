"""Every error this package raises on purpose. Each message says what was expected, what came, and what to do."""


class BridgeError(Exception):
    """Base of the errors of the environment side."""


class UserError(BridgeError, ValueError):
    """The request cannot be served as written; raised before any process starts. Commands exit with status 2."""


class UnsupportedSpaceError(UserError):
    """An observation or action space has a leaf we cannot store; the message carries the path to the leaf."""


class BadEnvOutputError(BridgeError):
    """An environment returned something its spaces do not allow; names row, field, expected and got."""


class LayoutMismatchError(BridgeError):
    """A segment was attached with another layout, format or run than the one that created it."""


class SegmentTooLargeError(BridgeError):
    """The operating system cannot back the shared memory that the pool needs."""


class WorkerError(BridgeError):
    """An environment raised in a worker; carries the environment id, the row, the step and the original traceback."""


class WorkerDiedError(BridgeError):
    """A worker process ended without being asked to; the message decodes its exit status."""


class QuorumError(BridgeError):
    """Too many environments have failed for good; the message ends with what the last one did."""


class WaitTimeoutError(BridgeError):
    """A bounded wait ran out of time."""


class PoolClosedError(BridgeError):
    """The pool was used after close()."""
