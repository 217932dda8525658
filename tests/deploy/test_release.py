"""`make release`: what it builds is whole, and its check fails for a wheel that is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.local_swarm.processes import SwarmError
from deploy.release.artifacts import Environment
from deploy.release.trial import STEPS, try_swarm

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("proto", "coordinator", "node", "planner")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release whose check used the dependencies of this environment."""
    out = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, "-m", "deploy.release", "--borrow", "--no-image", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"the wheel alone: replayed {STEPS} updates" in done.stdout
    return out


def test_the_checksums_are_right_and_the_sbom_names_what_is_installed(built: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=built, check=True, capture_output=True)
    summed = {line.split()[1] for line in (built / "SHA256SUMS").read_text().splitlines()}
    assert summed == {file.name for file in built.iterdir()} - {"SHA256SUMS"}
    (sbom,) = built.glob("*.cdx.json")
    found = json.loads(sbom.read_text())
    names = {component["name"] for component in found["components"]}
    assert {"torch", "grpcio", "cryptography"} <= names
    assert found["metadata"]["component"]["name"] == "thinwire"


def test_the_wheel_has_every_file_of_the_packages(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {name.partition("/")[2] for name in tracked.stdout.splitlines()}
    assert wanted - held == set()


def test_a_wheel_without_the_styles_of_the_page_is_refused(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    lacking = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(lacking, "w") as archive:
        for entry in whole.infolist():
            if not entry.filename.endswith("page.css"):
                archive.writestr(entry, whole.read(entry))
    environment = Environment(tmp_path / "environment", borrow=True)
    environment.install(lacking)
    with pytest.raises(SwarmError, match=r"page\.css"):
        try_swarm(environment, tmp_path)
    shutil.rmtree(tmp_path / "environment")
