"""Shell completion: bash takes the script, and completes commands, flags and choices with it."""

import re
import shutil
import subprocess

import pytest

import jaxsrl.cli.main
from jaxsrl.cli.commands.completion import completion_script

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
attempt jaxsrl train sac
attempt jaxsrl plan min
attempt jaxsrl train --li
attempt jaxsrl inspect experi
complete -p jaxsrl
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_flags_choices_experiments_and_files(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.py").write_text("")
    done = subprocess.run(
        ["bash", "-c", TRY],
        env={"SCRIPT": completion_script("bash"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
        cwd=tmp_path,
    )
    *completed, how = done.stdout.splitlines()
    assert completed == [
        "2:plan plot",
        "1:--video-episodes",
        "3:steps time frames",
        "2:sac_mujoco sac_pendulum",
        "1:mine",
        "1:--list",
        "0:",
    ]
    assert how == "complete -o default -F _jaxsrl jaxsrl"  # readline's own completion of files where ours has none
    assert done.stderr == ""


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef jaxsrl"), ("fish", "#"), ("bash", "#")])
def test_every_shell_gets_a_script_that_knows_every_command(capsys, shell, begins):
    jaxsrl.cli.main.main(["completion", shell])
    script = capsys.readouterr().out
    assert script.startswith(begins)
    assert all(re.search(rf"\b{name}\b", script) for name in jaxsrl.cli.main.COMMANDS)
