"""Whether the packages that a suite needs are installed; nothing is imported to find out."""

import importlib.util

from envpool_bridge.errors import UserError


def require_package(module: str, extra: str) -> None:
    """Refuses a suite whose package is missing.

    Args:
        module: that the suite imports.
        extra: of this project that installs it.

    Raises:
        UserError: names the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{module} is not installed, which these environments need: pip install 'jaxsrl[{extra}]'")
