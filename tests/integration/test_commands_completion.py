"""Shell completion by tyro: bash accepts the script and completes commands, flags and choices."""

import re
import shutil
import subprocess

import pytest

import jaxsrl.cli.main

TRY = """
eval "$SCRIPT"
function=$(complete -p jaxsrl | sed 's/.*-F \\([^ ]*\\).*/\\1/')
attempt() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
  $function jaxsrl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
  echo "${#COMPREPLY[@]}:${COMPREPLY[*]}"
}
attempt jaxsrl pl
attempt jaxsrl evaluate --video-
attempt jaxsrl plot --x ""
attempt jaxsrl train --li
"""


def script_for(shell, capsys):
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["--tyro-write-completion", shell, "-"])
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_flags_and_choices(capsys):
    done = subprocess.run(
        ["bash", "-c", TRY],
        env={"SCRIPT": script_for("bash", capsys), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    assert done.stdout.splitlines() == ["2:plan plot", "1:--video-episodes", "3:steps time frames", "1:--list"]
    assert done.stderr == ""


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef jaxsrl"), ("fish", "#"), ("bash", "#")])
def test_every_shell_script_knows_every_command(capsys, shell, begins):
    script = script_for(shell, capsys)
    assert script.startswith(begins)
    assert all(re.search(rf"\b{name}\b", script) for name in jaxsrl.cli.main.COMMANDS)
