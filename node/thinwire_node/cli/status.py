"""The command `thinwire-node status`."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from thinwire_node.observe import status
from thinwire_node.observe.view import byte_lines, lines


def print_status(folder: Path, *, as_json: bool) -> None:
    """Print the newest report from a state directory. Raises ConfigError if no node has run on it."""
    now_s = time.time()
    report = status.read(folder)
    if as_json:
        print(status.REPORT.dump_json(report, indent=2).decode())
        return
    console = Console(highlight=False)
    for line in (*lines(status.since(report, now_s), console.width), *byte_lines(report)):
        console.print(line, no_wrap=True, overflow="ellipsis")
    print(status.condition(report, status.runs(folder), now_s))
