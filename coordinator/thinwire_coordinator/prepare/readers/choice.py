"""Chooses the reader of a file by its name."""

from __future__ import annotations

from thinwire_coordinator.prepare.readers.json_lines import read_json, read_json_lines
from thinwire_coordinator.prepare.readers.parquet import read_parquet
from thinwire_coordinator.prepare.readers.port import Reader
from thinwire_coordinator.prepare.readers.text import read_text
from thinwire_coordinator.prepare.readers.token_files import read_token_file

COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
JSON_LINES = (
    ".jsonl",
    ".ndjson",
    *(f"{name}{packed}" for name in (".jsonl", ".ndjson", ".json") for packed in COMPRESSED),
)
"""Packed .json files, such as those of C4, have lines."""
READERS: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (JSON_LINES, read_json_lines),
    ((".json",), read_json),
    ((".parquet",), read_parquet),
    ((".bin",), read_token_file),
)


def reader_of(name: str) -> Reader:
    """The reader of the file with this name. Files with unknown suffixes are read as text."""
    for suffixes, reader in READERS:
        if name.lower().endswith(suffixes):
            return reader
    return read_text
