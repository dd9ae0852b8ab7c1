"""`jaxsrl completion`."""

import contextlib
import dataclasses
import io
from typing import Literal

import tyro

from jaxsrl.cli.find_experiment import list_experiments

_BASH = r"""
# Also names of experiments, and files where a command takes a path.
_jaxsrl() {
  _tyro_jaxsrl "$@"
  [[ -z ${COMPREPLY[*]} ]] && COMPREPLY=()
  if [[ $COMP_CWORD -eq 2 && ${COMP_WORDS[1]} =~ ^(train|plan)$ && $2 != -* ]]; then
    local here=$(cd experiments 2>/dev/null && for file in [!_]*.py; do [[ -e $file ]] && echo "${file%.py}"; done)
    COMPREPLY+=($(compgen -W "$(printf '%s\n' NAMES $here | sort -u)" -- "$2"))
  fi
}
complete -o default -F _jaxsrl jaxsrl
"""


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
    from jaxsrl.cli.main import parse

    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        parse(["--tyro-write-completion", shell, "-"])
    more = _BASH.replace("NAMES", " ".join(list_experiments())) if shell == "bash" else ""
    return script.getvalue() + more
