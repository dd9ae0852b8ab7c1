"""Shell completion: bash takes the script, and completes commands, flags and choices with it."""

import re
import shutil
import subprocess

import pytest

import jaxsrl.cli
from jaxsrl.commands.completion import completion_script

TRY = """
eval "$SCRIPT"
function=$(complete -p jaxsrl | sed 's/.*-F \\([^ ]*\\).*/\\1/')
attempt() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
  $function jaxsrl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
  echo "${COMPREPLY[@]}"
}
attempt jaxsrl pl
attempt jaxsrl evaluate --video-
attempt jaxsrl plot --x ""
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_flags_and_choices():
    done = subprocess.run(
        ["bash", "-c", TRY],
        env={"SCRIPT": completion_script("bash"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.splitlines() == ["plan plot", "--video-episodes", "steps time frames"]
    assert done.stderr == ""


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef jaxsrl"), ("fish", "#"), ("bash", "#")])
def test_every_shell_gets_a_script_that_knows_every_command(capsys, shell, begins):
    jaxsrl.cli.main(["completion", shell])
    script = capsys.readouterr().out
    assert script.startswith(begins)
    assert all(re.search(rf"\b{name}\b", script) for name in jaxsrl.cli.COMMANDS)
