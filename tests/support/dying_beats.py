"""A coordinator of a gossip run that kills itself (kill -9) at a point of sealing a beat or the final mean.

python dying_beats.py POINT N serve …

POINT: of POINTS, at its N-th passing in this process. Promises pass only with a report.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from thinwire_common import files
from thinwire_coordinator import __main__
from thinwire_coordinator.gossip import rows
from thinwire_coordinator.gossip.store import REPORT
from thinwire_coordinator.hall.ledger.ledger import Ledger

BEAT_POINTS: dict[str, tuple[Any, str, bool]] = {
    "promises are not written": (Ledger, "record_directory", False),
    "promises are written": (Ledger, "record_directory", True),
    "before the body": (rows.RowSealer, "_write", False),
    "the body is written": (files, "rename_synced", False),
    "the body is renamed": (files, "rename_synced", True),
    "the row is in": (Ledger, "append", True),
}
MEAN_POINTS: dict[str, tuple[Any, str, bool]] = {
    "before the mean": (rows.RowSealer, "write_mean", False),
    "before its file": (rows, "_save_synced", False),
    "its file is in": (rows, "_save_synced", True),
    "its row is in": (Ledger, "append", True),
}
"""The last one comes only once, because the run is complete then."""
POINTS = BEAT_POINTS | MEAN_POINTS


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, number: int) -> None:
    owner, name, behind = POINTS[point]
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def is_counted(arguments: tuple[Any, ...]) -> bool:
        if name == "rename_synced":
            return bool(arguments[1].parent.name == "updates")
        if name == "record_directory":
            return any(key.startswith(REPORT) for key in arguments[2])
        return point != "its row is in" or arguments[1].extras == {"kind": "mean"}

    def dies(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += is_counted(arguments)
        if calls == number and not behind:
            die()
        result = real(*arguments, **named)
        if calls == number:
            die()
        return result

    setattr(owner, name, dies)


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    sys.argv = ["thinwire-coordinator", *sys.argv[3:]]
    __main__.main()
