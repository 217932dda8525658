"""Each program prints a script that completes its command line; bash runs it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from deploy.local_swarm.processes import BIN

PROGRAMS = {"thinwire": "plan", "thinwire-coordinator": "serve", "thinwire-node": "install-service"}


def printed(program: str, shell: str) -> str:
    done = subprocess.run(
        [BIN / program, "--print-completion", shell], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.mark.parametrize(("program", "command"), PROGRAMS.items())
def test_bash_completes_a_command(program: str, command: str) -> None:
    script = (
        printed(program, "bash")
        + f"""
COMP_WORDS=({program} {command[:3]}) COMP_CWORD=1
_shtab_{program.replace("-", "_")}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    )
    done = subprocess.run(["bash", "--norc"], input=script, capture_output=True, text=True, check=True)
    assert command in done.stdout.split()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_other_shells_are_ones_that_they_read(shell: str) -> None:
    script = printed("thinwire-node", shell)
    assert "install-service" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)
