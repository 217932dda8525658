"""The state of a run between two rounds, on disk, so that a run of hours that is stopped loses a few minutes.

A checkpoint is a pickle of this program's own objects. It therefore belongs to the code, the settings, the device and
the text that made it, whose hash is in its name. A checkpoint of anything else is removed, and its run begins again.
"""

from __future__ import annotations

import copyreg
import hashlib
import json
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import torch

import bench.convergence
import thinwire_node
import thinwire_proto
from bench.convergence.method import Method, NodeTraffic
from bench.convergence.problem import Problem

SUFFIX = ".checkpoint"
EVERY_S = 300.0
CODE = (bench.convergence, thinwire_node, thinwire_proto)

copyreg.pickle(weakref.WeakSet, lambda _: (weakref.WeakSet, ()))
"""A replica knows who writes it to a file. In a study, nobody does."""


@dataclass
class RunState:
    """All of a run that is under way. next_round: the first that is still to be trained. seconds: taken so far."""

    problem: Problem
    method: Method
    next_round: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    traffic: NodeTraffic = NodeTraffic(0.0, 0.0)  # noqa: RUF009 (frozen)
    seconds: float = 0.0


class Checkpoint:
    """The file of one run.

    folder: that of the results. run: the name of the run's result. settings, corpus: those of the result, and the
    device. every_s: seconds from one save to the next.
    """

    def __init__(
        self, folder: Path, run: str, settings: dict[str, object], corpus: str, every_s: float = EVERY_S
    ) -> None:
        belongs_to = hashlib.sha256(json.dumps([settings, corpus, torch.__version__, _code_hash()]).encode())
        self._folder, self._run = folder, run
        self._every_s, self._saved = every_s, time.monotonic()
        self._path = folder / f"{run}.{belongs_to.hexdigest()[:16]}{SUFFIX}"

    def load(self) -> RunState | None:
        """Return the newest state, without its text; None if there is none."""
        for path in self._folder.glob(f"{self._run}.*{SUFFIX}*"):
            if path != self._path:
                path.unlink()
        if not self._path.exists():
            return None
        state: RunState = torch.load(self._path, weights_only=False)
        return state

    def save_if_due(self, state: RunState) -> None:
        """Replace the file atomically."""
        if time.monotonic() - self._saved < self._every_s:
            return
        temporary = Path(f"{self._path}.part")
        torch.save(state, temporary)
        temporary.replace(self._path)
        self._saved = time.monotonic()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _code_hash() -> str:
    """Hash of all sources that make a run."""
    found = hashlib.sha256()
    for package in CODE:
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
