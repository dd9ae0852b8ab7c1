"""The library by which MuJoCo draws, loaded for all libraries that this process loads from now on.

EnvPool has a copy of it, which its MuJoCo does not recognize by its name (github.com/sail-sg/envpool/issues/401). Loading is the
import of a module, so that a fork server that repeats a worker's imports does it in the same order.
"""

import ctypes

MISSING = ""
"""Why it is not loaded; "" if it is."""

try:
    ctypes.CDLL("libEGL.so.1", ctypes.RTLD_GLOBAL)
except OSError as error:
    MISSING = str(error)
