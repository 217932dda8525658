"""Reads the documents of a source without preparing them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thinwire_coordinator.prepare.problems import Counts, Problems
from thinwire_coordinator.prepare.readers.choice import read_documents
from thinwire_coordinator.prepare.readers.port import Document, Reading
from thinwire_coordinator.prepare.sources import find_files

WAIT_S = 10.0


@dataclass(frozen=True)
class Read:
    """documents: of all files, empty ones left out. said: lines for the user."""

    documents: list[Document]
    counts: Counts
    said: list[str]


def read(source: Path | str, text_key: str = "text", bad_max: int = 10) -> Read:
    said: list[str] = []
    problems = Problems(bad_max, said.append)
    reading = Reading(text_key, None, 1 << 16, problems)
    files = find_files(str(source), WAIT_S)
    found = [document for file in files for document in read_documents(file, reading) if len(document)]
    return Read(found, problems.counts, said)
