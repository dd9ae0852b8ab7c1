"""CPU side of jaxsrl: environments in worker processes that write into a shared-memory ring. Never imports jax."""

import sys

if sys.platform == "win32":
    raise ImportError("jaxsrl and envpool_bridge do not run on Windows: use Linux, or Linux inside Windows (WSL 2)")
