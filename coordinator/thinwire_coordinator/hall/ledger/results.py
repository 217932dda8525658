"""Results of `evaluate`, in a file of the state directory.

The problem: `evaluate` adds results while the coordinator of the run reads them, and nothing that is in the file may
harm the coordinator. The sketch: a line of JSON for each result; all lines of a call are one write at the end of the
file. A reader takes a bounded part of it, and passes over each line that is no result, such as one that is not yet
whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire_common.files import replace_synced

FILE = "results.jsonl"
BYTES_MAX = 1 << 20
"""Bound on the file. If it would grow beyond, the older half of the results is dropped."""
NAME_MAX = 200


class Result(BaseModel):
    """A figure of the model at a step.

    kind: of what was evaluated: a held-out set, a text, or a task of lm-eval. metric: loss, in nats per token or per
    pair; of pairs also margin and preferred; of a task as lm-eval has it. stderr: standard error of the value, if it is
    known. count: tokens, pairs or samples that the value is the mean of. fingerprint: of the model, with nonce 0.
    """

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    kind: Literal["set", "text", "task"]
    name: str = Field(max_length=NAME_MAX)
    step: int = Field(ge=0, lt=1 << 53)
    metric: str = Field(max_length=NAME_MAX)
    value: float
    stderr: float | None = Field(None, ge=0)
    count: int = Field(0, ge=0, lt=1 << 53)
    fingerprint: str = Field("", pattern="^([0-9a-f]{16})?$")

    @property
    def is_on_curve(self) -> bool:
        """Whether it is what the run itself measures: the loss on a held-out set."""
        return self.kind == "set" and self.metric == "loss"

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Where two results have the same, the later one holds."""
        return self.kind, self.name, self.metric, self.step


def add_results(folder: Path, results: Iterable[Result]) -> None:
    """Add results to the file of a state directory. Raises OSError."""
    path, data = folder / FILE, _lines(results)
    with FileLock(folder / ".results.lock"):
        _add(folder, path, data)


def _add(folder: Path, path: Path, data: bytes) -> None:
    if path.exists() and path.stat().st_size + len(data) > BYTES_MAX:
        before = read_results(folder)
        replace_synced(path, _lines(before[len(before) // 2 :]))
    with path.open("ab+", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # an earlier write broke off
                data = b"\n" + data
        if file.write(data) != len(data):
            raise OSError(f"{path}: the results were not written whole")


def _lines(results: Iterable[Result]) -> bytes:
    return b"".join(one.model_dump_json(exclude_none=True).encode() + b"\n" for one in results)


def read_results(folder: Path) -> tuple[Result, ...]:
    """The results in a state directory, those that were added last at the end; none if they cannot be read."""
    path, found = folder / FILE, dict[tuple[str, str, str, int], Result]()
    try:
        if not path.is_file():
            return ()
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - BYTES_MAX))
            data = file.read(BYTES_MAX)
    except OSError:
        return ()
    for line in data.split(b"\n"):
        with suppress(ValidationError):
            one = Result.model_validate_json(line)
            found.pop(one.key, None)
            found[one.key] = one
    return tuple(found.values())


class NewestResults:
    """The results in a state directory, which are read again when the file has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._results: tuple[Result, ...] = ()

    def read(self) -> tuple[Result, ...]:
        try:
            about = (self._folder / FILE).stat()
            seen = about.st_mtime_ns, about.st_size
        except OSError:
            seen = None
        if seen != self._seen:
            self._seen, self._results = seen, read_results(self._folder)
        return self._results
