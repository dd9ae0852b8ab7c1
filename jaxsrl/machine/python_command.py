"""Commands of Python programs of this package, in which no file of the working directory shadows a module."""

import sys
from pathlib import Path

# For a checkout that is not installed.
_FIND_PACKAGE = f"import sys; sys.path.append({str(Path(__file__).resolve().parents[2])!r}); "

_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def python_command(program: str, *arguments: str) -> list[str]:
    """Returns the command that runs a program text, which finds `arguments` in sys.argv[1:].

    `python -m` would search the working directory first: a user's `logging.py` there would take the place of Python's module.
    """
    return [sys.executable, "-P", "-c", _FIND_PACKAGE + program, *arguments]


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module as `python -m` does; it finds `arguments` in sys.argv[1:]."""
    return python_command(_RUN_MODULE, module, *arguments)


def jaxsrl_command(*arguments: str) -> list[str]:
    """Returns the command line of `jaxsrl` with these arguments."""
    return python_command("from jaxsrl.cli.main import main; main()", *arguments)
