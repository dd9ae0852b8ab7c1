"""jax ends a process by abort() when it has lost the others, which leaves a C++ stack and status 134; here it gets our words.

There is no other way to notice. The callback that jaxlib has for this cannot be called from Python: its argument has no conversion
(jaxlib 0.10). And if process 0, which serves the others, is lost, it can send them nothing.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_installed: set["AbortHandler"] = set()  # C holds no reference to what it calls
_SECONDS = 10  # then the process is ended all the same: a handler of abort() runs wherever abort() was called


class AbortHandler:
    """Handles SIGABRT from any thread while installed. Thread-safety: install and remove in the main thread.

    Args:
        message: what to say on stderr.
        status: Status to exit with; may be changed.
    """

    def __init__(self, message: Callable[[], str], status: int) -> None:
        self._message, self.status = message, status
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._ended)
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._libc.signal.restype = ctypes.c_void_p
        self._libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]

    def install(self) -> None:
        """Makes abort() print the message and exit with the status."""
        _installed.add(self)
        self._libc.signal(signal.SIGABRT, ctypes.cast(self._handler, ctypes.c_void_p))

    def remove(self) -> None:
        """Restores the default of abort()."""
        self._libc.signal(signal.SIGABRT, None)
        _installed.discard(self)

    def _ended(self, number: int) -> None:
        self._libc.alarm(_SECONDS)
        sys.stderr.write(f"error: {self._message()}\n")
        sys.stderr.flush()
        os._exit(self.status)
