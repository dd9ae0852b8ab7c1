"""Validation that the optional packages of a suite are installed, without importing them."""

import importlib.util

from envpool_bridge.errors import UserError


def validate_installed(module: str, extra: str) -> None:
    """Raises if the package of a suite is missing.

    Args:
        module: module that the suite imports.
        extra: extra of the distribution envpool-bridge that installs it.

    Raises:
        UserError: names the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise UserError(
            f"{module} is not installed, and these environments need it: pip install 'envpool-bridge[{extra}]'"
        )
