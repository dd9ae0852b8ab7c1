"""`jaxsrl completion`."""

import contextlib
import dataclasses
import io
from typing import Literal

import tyro


@dataclasses.dataclass(frozen=True)
class Completion:
    """Print a script that lets a shell complete commands and flags. bash: eval "$(jaxsrl completion bash)" in ~/.bashrc.

    zsh: jaxsrl completion zsh > "${fpath[1]}/_jaxsrl". fish: jaxsrl completion fish > ~/.config/fish/completions/jaxsrl.fish.

    Attributes:
        shell: to write for.
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]

    def run(self) -> int:
        """Prints."""
        print(completion_script(self.shell), end="")  # noqa: T201
        return 0


def completion_script(shell: Literal["bash", "zsh", "fish"]) -> str:
    """The script for a shell, made from the commands as they are."""
    from jaxsrl.cli import parse

    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        parse(["--tyro-write-completion", shell, "-"])
    return script.getvalue()
