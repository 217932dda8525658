"""An environment of its own for each system, from the package index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.peers.systems import NEEDED, System

INSTALL_S = 1200
DONE = ".installed"


class NotInstalledError(Exception):
    """A system cannot be installed. The message is the installer's last line that says why."""


def python_of(system: System, folder: Path) -> Path:
    """The Python of a system's environment in `folder`, which is made if it is not there. Raises NotInstalledError."""
    if not system.package:
        return Path(sys.executable)
    environment = folder / system.package.split()[0].replace("==", "-")
    done = environment / DONE
    if not (done.exists() and done.read_text() == _wanted(system)):
        _run([sys.executable, "-m", "venv", "--clear", str(environment)])
        _run([str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", *_wanted(system).split()])
        done.write_text(_wanted(system))
    return environment / "bin" / "python"


def check_imports(system: System, python: Path) -> None:
    """Raise NotInstalledError if a system without a script has nothing that a script could import."""
    if system.imports:
        _run([str(python), "-c", f"import {system.imports}"])
        raise NotInstalledError(f"error: {system.name} has {system.imports} now, and no script in bench/peers/scripts")


def versions_of(system: System, python: Path) -> dict[str, str]:
    """Versions of the system, of PyTorch, and of numpy in its environment."""
    names = ["torch", "numpy", *([system.package.split()[0].partition("==")[0]] if system.package else ["thinwire"])]
    code = "import sys; from importlib.metadata import version; [print(version(name)) for name in sys.argv[1:]]"
    found = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(names, found, strict=True))


def _wanted(system: System) -> str:
    return " ".join((*NEEDED, system.package))


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"{command[-1]} was not installed within {INSTALL_S} s") from None
    if done.returncode:
        raise NotInstalledError(last_error(done.stderr))


def last_error(text: str) -> str:
    """The last line of a log that names an error; else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it printed nothing"])[-1]
