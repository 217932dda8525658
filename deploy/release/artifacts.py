"""The artifacts of a release: sdist, wheel, SBOM, image and checksums."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.release.environment import Environment

ROOT = Path(__file__).resolve().parents[2]
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""The index of torch in the image, as docker-compose.yml has it; the variable of this name overrides it."""


class BuildError(Exception):
    """A part of the release could not be built. The message ends with what the program wrote."""


@dataclass(frozen=True)
class Packages:
    """The two files that are installed."""

    sdist: Path
    wheel: Path

    @property
    def version(self) -> str:
        return self.wheel.name.split("-")[1]


def build_packages(out: Path) -> Packages:
    """Build the sdist from the repository, and the wheel from the sdist, so that it shows what the sdist lacks."""
    ran([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)])
    return Packages(next(out.glob("*.tar.gz")), next(out.glob("*.whl")))


def write_sbom(environment: Environment, version: str, path: Path) -> int:
    """Write the components of an environment with the wheel, with their versions and licenses, as CycloneDX's JSON.

    Returns how many there are. Raises BuildError if thinwire is not among them, in this version."""
    program = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    program += ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(path), str(environment.python)]
    ran(program)
    found = json.loads(path.read_text())
    main = found["metadata"]["component"]
    if (main["name"], main["version"]) != ("thinwire", version):
        raise BuildError(f"{path.name}: is of {main['name']} {main['version']}, not of thinwire {version}")
    return len(found.get("components", ()))


def build_image(version: str) -> str:
    """Build the image thinwire:VERSION if an engine answers. Returns what was done, in words."""
    try:
        answered = subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        answered = False
    if not answered:
        return "no image: no Docker engine answers here (`docker info`)"
    index = os.environ.get("TORCH_INDEX", TORCH_INDEX)
    tag = f"thinwire:{version}"
    command = ["docker", "build", "--quiet", "--tag", tag, "--file", str(ROOT / "deploy" / "Dockerfile")]
    ran([*command, "--build-arg", f"TORCH_INDEX={index}", str(ROOT)])
    said = ran(["docker", "run", "--rm", "--network", "none", tag, "thinwire-node", "--version"]).strip()
    if said != f"thinwire-node {version}":
        raise BuildError(f"the image {tag} has {said!r}")
    return f"the image {tag}, which has {said}"


def write_sums(out: Path, files: Sequence[Path]) -> Path:
    """Write SHA256SUMS of files in `out`, in the form that sha256sum reads."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    sums = out / "SHA256SUMS"
    sums.write_text("".join(lines), encoding="utf-8")
    return sums


def ran(command: list[str]) -> str:
    """The output of a program. Raises BuildError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BuildError(f"`{' '.join(command)}` failed:\n{tail}")
    return done.stdout
