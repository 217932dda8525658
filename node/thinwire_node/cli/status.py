"""The command `thinwire-node status`."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console

from thinwire_node.observe import status
from thinwire_node.observe.view import byte_lines, whole_lines
from thinwire_proto.errors import ConfigError


def print_slots(shared: Path, *, as_json: bool) -> None:
    """Print the newest report of each state slot of a folder. Raises ConfigError if no node has run there."""
    slots = sorted(
        (file.parent for file in shared.glob(f"*/{status.FILE}") if file.parent.name.isdecimal()),
        key=lambda slot: int(slot.name),
    )
    if not slots:
        raise ConfigError(f"{shared}: no node has run here; give the nodes' --state-slots")
    if as_json:
        print(json.dumps({slot.name: _as_json(slot) for slot in slots}, indent=2))
        return
    for slot in slots:
        print(f"{slot}:")
        try:
            print_status(slot, as_json=False)
        except ConfigError as error:  # the other slots are shown all the same
            print(error)
        print()


def _as_json(slot: Path) -> object:
    """The report of a slot; null if it cannot be read."""
    try:
        return status.REPORT.dump_python(status.read(slot), mode="json")
    except ConfigError:
        return None


def print_status(folder: Path, *, as_json: bool) -> None:
    """Print the newest report from a state directory. Raises ConfigError if no node has run on it."""
    now_s = time.time()
    report = status.read(folder)
    if as_json:
        print(status.REPORT.dump_json(report, indent=2).decode())
        return
    console = Console(highlight=False, markup=False, emoji=False)
    width = console.width
    for line in (*whole_lines(status.since(report, now_s), width), *byte_lines(report, width)):
        console.print(line, overflow="fold")
    words = status.condition(report, status.runs(folder), now_s)
    console.print(words, soft_wrap=not console.is_terminal)  # one line, which a terminal shows wrapped between words
