"""An environment that holds a wheel and its dependencies, and nothing of the repository."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import IO

from deploy.local_swarm.processes import Started, SwarmError

ROOT = Path(__file__).resolve().parents[2]
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
