"""The version before this one, as a wheel that is installed aside."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

PREVIOUS = "76b23b25096d571617d55ea7f647ef0b167ff4d7"
"""The commit of the newest version that runs in the field; each release moves it to the one before."""
ROOT = Path(__file__).parents[2]
BUILD_S = 300


def installed_previous(folder: Path) -> Path:
    """Build the previous version's wheel and unpack it. Returns the folder that holds its packages. Skips the
    test where the history or a package index is missing."""
    archive, source, into = folder / "previous.tar", folder / "source", folder / "installed"
    found = _run("git", "-C", str(ROOT), "archive", "--output", str(archive), PREVIOUS)
    if found.returncode:
        pytest.skip(f"the commit of the previous version is not in this clone: {found.stderr.strip()}")
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = _run(*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source))
    if built.returncode:
        pytest.skip(f"the wheel of the previous version cannot be built here: {built.stderr.strip()[-200:]}")
    (wheel,) = folder.glob("thinwire-*.whl")
    installed = _run(*pip, "install", "--no-deps", "--no-compile", "--target", str(into), str(wheel))
    assert installed.returncode == 0, installed.stderr
    return into


def program_of(installed: Path, package: str) -> list[str]:
    """The command that runs a program of the previous version: `thinwire_node` or `thinwire_coordinator`. It has a
    process of its own, not a fork of this version's modules."""
    return ["python3", str(Path(__file__).with_name("of_wheel.py")), str(installed), package]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
