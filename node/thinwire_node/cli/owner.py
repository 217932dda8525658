"""The commands `set`, `pause`, `resume` and `stop`, with which an owner limits a node, by files that it reads."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from thinwire_common.local_time import follow_zone
from thinwire_node.limits import limits
from thinwire_node.limits.keeper import LimitsSource
from thinwire_node.limits.limits import AT_START, LimitsFile, key_of
from thinwire_node.limits.quantities import in_words, read_until
from thinwire_node.limits.resting import ORDERS_FILE, Orders, OrdersFile
from thinwire_node.observe import status
from thinwire_proto.errors import ConfigError, UsageError


def set_limits(state_dir: Path, path: Path | None, entries: list[str]) -> str:
    """Change limits, or none of them if one is wrong. Returns them all, a line for each. Raises UsageError."""
    _check_used(state_dir)
    file, changes = limits_file(state_dir, path), limits.read_changes(entries)
    given = file.read()
    try:
        found = limits.changed(given, changes)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if found != given:
        file.write(found)
    lines = [f"{key_of(name)} = {text}" for name, text in sorted(found.items())] or ["no limits"]
    late = [key_of(name) for name in sorted(AT_START & changes.keys()) if found.get(name) != given.get(name)]
    if late and status.runs(state_dir):
        lines.append(f"{', '.join(late)}: from the next start of the node on")
    return "\n".join(lines)


def limits_file(state_dir: Path, path: Path | None) -> LimitsFile:
    """The file with a node's limits. path: the given one; None: that of the state directory. Raises UsageError if none
    is given and the node that runs or ran here has another one. The path in its report is told and not used: whoever
    asks may be root, and may write where the node may not."""
    file = LimitsSource(path).file(state_dir)
    try:
        used = status.read(state_dir).limits_file
    except ConfigError:  # no node has run yet, or its report cannot be read
        used = ""
    if path is None and used not in ("", str(file.path.absolute())):
        raise UsageError(
            f"{state_dir}: the node was last started with --limits {used}; give the same, or --limits {file.path} for "
            "a start without"
        )
    return file


def pause(state_dir: Path, words: list[str]) -> str:
    """Let a node rest, also one that starts later. Raises UsageError."""
    _check_used(state_dir)
    follow_zone()  # the page's process lasts
    now = time.time()
    try:
        until = read_until(words, now)
    except ValueError as error:
        raise UsageError(str(error)) from None
    _order(state_dir, Orders(paused=True, until=until))
    return "paused until `thinwire-node resume`" if until is None else f"paused until {in_words(until, now)}"


def resume(state_dir: Path) -> str:
    _check_used(state_dir)
    _order(state_dir, Orders())
    return "the pause is over"


def stop(state_dir: Path, *, after_round: bool) -> str:
    """Stop the node that runs. Raises ConfigError if none does."""
    _check_used(state_dir)
    if status.runs(state_dir) is False:
        raise ConfigError(f"{state_dir}: no node runs here")
    orders = OrdersFile(state_dir / ORDERS_FILE)
    orders.write(replace(orders.read(), stop="after-round" if after_round else "now"))
    return "the node stops after its round" if after_round else "the node stops"


def _order(state_dir: Path, pause: Orders) -> None:
    """Replace the pause. An order to stop that the node has not read yet holds."""
    file = OrdersFile(state_dir / ORDERS_FILE)
    try:
        stop = file.read().stop
    except ConfigError:  # a damaged file is replaced
        stop = ""
    file.write(replace(pause, stop=stop))


def _check_used(state_dir: Path) -> None:
    if not state_dir.is_dir():
        raise ConfigError(f"{state_dir}: no node has run here; give the node's --state-dir")
