"""The file behind `thinwire-node status`, which another process reads.

A node need not listen on a port. It writes its report into its state directory every few seconds, and the status
command reads it there. The lock on the directory shows whether the node runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from thinwire_common.units import human_seconds
from thinwire_node.report import Report
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError

FILE = "status.json"
LOCK = "lock"
WRITE_EVERY_S = 2.0
REPORT = TypeAdapter(Report)


def write(folder: Path, report: Report) -> None:
    """Replace the report atomically. It is not synced, because it is useless after a power cut. Raises OSError."""
    passing = folder / "status.part"
    passing.write_bytes(REPORT.dump_json(report))
    passing.replace(folder / FILE)


def read(folder: Path) -> Report:
    """Read the newest report of the node that runs or ran on a state directory. Raises ConfigError."""
    try:
        return REPORT.validate_json((folder / FILE).read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{folder}: no node has run here; give the node's --state-dir") from None
    except OSError as error:
        raise ConfigError(f"{folder / FILE}: {error.strerror}") from None
    except ValidationError:
        text = f"{folder / FILE}: written by another version of thinwire-node, or damaged; a node that runs replaces it"
        raise ConfigError(text) from None


def runs(folder: Path) -> bool | None:
    """Whether a node holds the state directory; None if the lock cannot be tested."""
    try:
        if not (folder / LOCK).exists():  # it would belong to whoever asks
            return False
        with FileLock(folder / LOCK).acquire(blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # the file belongs to another user
        return None


def condition(report: Report, running: bool | None, now_s: float) -> str:
    """Whether the node runs, and if not, when and why it ended, in words. now_s: the time of day."""
    age_s = max(0.0, now_s - report.at_s)
    ago = human_seconds(age_s)
    if running is None:
        running = age_s < limits.STATUS_OLD_AFTER_S
    if running and age_s < limits.STATUS_OLD_AFTER_S:
        return "the node is running"
    if running:
        return f"the node is running, but has not reported for {ago}: it is stopped or too busy"
    if report.ended_by:
        return f"the node is not running; an error ended it {ago} ago: {report.ended_by}"
    how = "it left" if report.state == "left" else "it ended without leaving"
    return f"the node is not running; {how} {ago} ago"


def since(report: Report, now_s: float) -> Report:
    """A report with its remaining time reduced to the present."""
    left_s = report.part.round_left_s
    if left_s is None:
        return report
    return replace(report, part=replace(report.part, round_left_s=max(0.0, left_s - max(0.0, now_s - report.at_s))))
