"""A coordinator that dies, by kill -9 from within, at a named point of sealing its n-th update.

python dying_coordinator.py POINT N serve …
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thinwire_coordinator import __main__, bodies
from thinwire_coordinator.feed import Feed
from thinwire_coordinator.intake import Intake
from thinwire_coordinator.ledger import Ledger

POINTS: dict[str, tuple[Any, str, bool]] = {
    "body written": (bodies, "rename_synced", False),  # under its passing name, and not synced
    "body renamed": (bodies, "rename_synced", True),
    "row in": (Ledger, "append", True),
    "first broadcast": (Feed, "publish", True),
    "receipts": (Intake, "close", True),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, number: int) -> None:
    place, name, behind = POINTS[point]
    real: Callable[..., Any] = getattr(place, name)
    calls = 0

    def counts(*arguments: Any, **named: Any) -> bool:
        nonlocal calls
        is_an_update = name != "rename_synced" or Path(arguments[1]).parent.name == "updates"
        calls += is_an_update
        return is_an_update and calls == number

    def dies(*arguments: Any, **named: Any) -> Any:
        now = counts(*arguments)
        if now and not behind:
            die()
        result = real(*arguments, **named)
        if now:
            die()
        return result

    async def dies_later(*arguments: Any) -> None:
        now = counts(*arguments)
        await real(*arguments)
        if now:
            die()

    setattr(place, name, dies_later if name == "publish" else dies)


if __name__ == "__main__":
    point, number = sys.argv[1], int(sys.argv[2])
    arm(point, number)
    sys.argv = ["thinwire-coordinator", *sys.argv[3:]]
    __main__.main()
