"""`thinwire-node status`: how a node is, asked from another process.

A node listens on nothing. So it leaves its report in its state directory every few seconds, and whoever asks reads it
there; whether the node runs is told by the lock that it holds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from thinwire_common.units import human_seconds
from thinwire_node.observe.report import Report
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError

FILE = "status.json"
LOCK = "lock"
WRITE_EVERY_S = 2.0
REPORT = TypeAdapter(Report)


def write(folder: Path, report: Report) -> None:
    """Whole or not at all. Not synced: after a power cut it is worth nothing. Raises OSError."""
    passing = folder / "status.part"
    passing.write_bytes(REPORT.dump_json(report))
    passing.replace(folder / FILE)


def read(folder: Path) -> Report:
    """The newest report of the node that runs on a state directory, or ran there. Raises ConfigError."""
    try:
        return REPORT.validate_json((folder / FILE).read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{folder}: no node has run here; name its --state-dir") from None
    except OSError as error:
        raise ConfigError(f"{folder / FILE}: {error.strerror}") from None
    except ValidationError:
        raise ConfigError(f"{folder / FILE}: written by another version of thinwire-node") from None


def runs(folder: Path) -> bool | None:
    """Whether a node holds the state directory; None if that cannot be found out."""
    lock = FileLock(folder / LOCK)
    try:
        with lock.acquire(blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # it belongs to somebody else
        return None


def condition(report: Report, running: bool | None, now_s: float) -> str:
    """Whether the node runs, in words; `now_s` by the time of day."""
    age_s = max(0.0, now_s - report.at_s)
    ago = human_seconds(age_s)
    if running is None:
        running = age_s < limits.SILENT_AFTER_S
    if running and age_s < limits.SILENT_AFTER_S:
        return "it runs"
    if running:
        return f"it runs, but has not been heard of for {ago}: stopped, or too busy"
    how = "it left" if report.state == "left" else "it ended without leaving"
    return f"it does not run now; {how}, {ago} ago"


def since(report: Report, now_s: float) -> Report:
    """What of a report passes by itself, brought up to now."""
    left_s = report.place.round_left_s
    if left_s is None:
        return report
    return replace(report, place=replace(report.place, round_left_s=max(0.0, left_s - max(0.0, now_s - report.at_s))))
