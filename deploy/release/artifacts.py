"""The artifacts of a release: sdist, wheel, SBOM, image and checksums."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deploy.local_swarm.processes import Started, SwarmError

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


OF_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")
"""Variables that could bring the repository, or another environment, into the programs."""
WHERE = "import thinwire_coordinator, thinwire_node; print(thinwire_coordinator.__file__, thinwire_node.__file__)"


class Environment:
    """A virtual environment in a new folder.

    borrow: dependencies are those of the environment that runs this, so that none is downloaded. Its packages are then
    on the path without its .pth files, and so without the repository."""

    def __init__(self, folder: Path, *, borrow: bool) -> None:
        self._folder, self._borrow = folder, borrow
        venv.create(folder, with_pip=True)
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / f"python{'.exe' if os.name == 'nt' else ''}"
        if borrow:
            own = sysconfig.get_path("purelib")
            theirs = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
            (theirs / "borrowed.pth").write_text(f"{own}\n", encoding="utf-8")

    def install(self, wheel: Path) -> None:
        """Install the wheel. Raises SwarmError if that fails, or if its packages come from elsewhere."""
        limits = ["--no-deps"] if self._borrow else ["--constraint", str(ROOT / "constraints.txt")]
        self._say([str(self.python), "-m", "pip", "install", "--quiet", *limits, str(wheel)])
        found = self._say([str(self.python), "-c", WHERE]).split()
        if any(not Path(file).resolve().is_relative_to(self._folder.resolve()) for file in found):
            raise SwarmError(f"the wheel's environment takes its packages from {', '.join(found)}")

    def start(self, command: list[str], out: IO[bytes]) -> Started:
        """Start an installed program with its output in a file; see `Process`."""
        return subprocess.Popen(
            [str(self.bin / command[0]), *command[1:]],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            env=self._variables(),
            start_new_session=True,
        )

    def said(self, *command: str) -> str:
        """The output of an installed program. Raises SwarmError if it fails."""
        return self._say([str(self.bin / command[0]), *command[1:]])

    def _say(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=self._folder,
            env=self._variables(),
            check=False,
        )
        if done.returncode != 0:
            raise SwarmError(f"`{' '.join(command)}` failed in the wheel's environment:\n{done.stderr[-2000:]}")
        return done.stdout

    def _variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OF_PYTHON}
        return {name: value for name, value in kept.items() if not name.startswith("THINWIRE_")}
