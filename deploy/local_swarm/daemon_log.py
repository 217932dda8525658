"""Reads the log of a daemon that was started with `--log-format json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def entry_of(line: str) -> dict[str, Any] | None:
    """Parse a line of the log. Returns None if it is not a JSON object, such as output of the interpreter itself."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def events(log: str, event: str) -> Iterator[dict[str, Any]]:
    """The entries of one event, in the order in which they were logged."""
    for line in log.splitlines():
        if (entry := entry_of(line)) is not None and entry.get("event") == event:
            yield entry


def readable(line: str) -> str:
    """A log entry in the text format. Any other line is returned unchanged."""
    entry = entry_of(line)
    if entry is None or "message" not in entry:
        return line
    clock = str(entry.get("time", "")).partition("T")[2].partition(".")[0]
    return "\n".join(filter(None, [f"{clock} {entry['message']}", entry.get("exception")]))
