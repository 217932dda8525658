"""A coordinator that kills itself (kill -9) at a named point while it seals its n-th update.

python dying_coordinator.py POINT N serve …

The last two points come shortly after gRPC reports a message as sent, not when gRPC accepts it. So the first node has
the message, and the others may have it. A node that loses the connection drops what it has not taken yet.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thinwire_common import files
from thinwire_coordinator import __main__
from thinwire_coordinator.hall.events import Event, Events, PhaseTook
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.rpc.service import Service
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.intake import Intake

TAKING_S = 0.3
"""Longer than a node usually needs to take what it has received."""
BROADCAST, RECEIPTS = "first broadcast", "receipts"
POINTS: dict[str, tuple[Any, str, bool]] = {
    "body written": (files, "rename_synced", False),  # under its temporary name, not synced
    "body renamed": (files, "rename_synced", True),
    "row in": (Ledger, "append", True),
    BROADCAST: (Feed, "publish", True),
    RECEIPTS: (Intake, "close", True),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_soon() -> None:
    asyncio.get_running_loop().call_later(TAKING_S, die)


def arm(point: str, number: int) -> None:
    owner, name, behind = POINTS[point]
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0
    once_out = SENT[point]() if point in SENT else die

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
            once_out()
        return result

    async def dies_later(*arguments: Any) -> None:
        now = counts(*arguments)
        await real(*arguments)
        if now:
            once_out()
            await asyncio.Event().wait()  # sends no receipt before it dies

    setattr(owner, name, dies_later if point == BROADCAST else dies)


def when_an_update_is_out() -> Callable[[], None]:
    """Return a function that arms the death: the process dies once the next update has been sent to a node."""
    real = Events.tell
    due = asyncio.Event()

    def tell(events: Events, event: Event) -> None:
        real(events, event)
        if due.is_set() and isinstance(event, PhaseTook) and event.phase == "broadcast":
            die_soon()

    Events.tell = tell  # type: ignore[assignment,method-assign]
    return due.set


def when_a_receipt_is_out() -> Callable[[], None]:
    """The same for a receipt: gRPC ends a call once it has sent the reply.

    Once armed, the process seals no further round, because the update of that round might reach no node.
    """
    real: Callable[..., Any] = Service.Contribute
    due = asyncio.Event()

    async def contribute(service: Service, parts: Any, context: Any) -> Any:
        receipt = await real(service, parts, context)
        if due.is_set():
            context.add_done_callback(lambda _: die_soon())
        return receipt

    def die_next() -> None:
        due.set()
        Ledger.append = lambda *_: threading.Event().wait()  # type: ignore[assignment,method-assign]

    Service.Contribute = contribute  # type: ignore[assignment,method-assign]
    return die_next


SENT = {BROADCAST: when_an_update_is_out, RECEIPTS: when_a_receipt_is_out}

if __name__ == "__main__":
    point, number = sys.argv[1], int(sys.argv[2])
    arm(point, number)
    sys.argv = ["thinwire-coordinator", *sys.argv[3:]]
    __main__.main()
