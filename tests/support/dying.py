"""A coordinator or a node that kills itself (kill -9) at a point.

    python dying.py POINT N [--chain FILE | --rates FILE] {serve,start} …

POINT: of the tables below, at its N-th passing in this process, or `never`. FILE gets JSON lines. With --chain: one for
each turn that a node mixes in memory, [head before, head after, topology, iteration, peer, hash of its message, hash of
the peer's]. With --rates: one for each step that a node takes in memory, [iteration, rate, weight decay].
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from thinwire_common import files
from thinwire_coordinator import __main__ as coordinator
from thinwire_coordinator.gossip import ledger_rows
from thinwire_coordinator.gossip.store import REPORT
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.intake import Intake
from thinwire_node import __main__ as node
from thinwire_node.gossip import journal, work
from thinwire_node.gossip.journal import JOURNAL_FILE, GossipJournal
from thinwire_node.gossip.neighbours import Neighbours
from thinwire_node.storage.state import NodeState
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.exact import schedule
from thinwire_proto.gossip.chain import MixChain
from thinwire_proto.gossip.iteration import Turn

NEVER = "never"
AMID = "amid the write"


class Point(NamedTuple):
    """Before or behind a call of a function. counts: of its arguments, whether a call is a passing."""

    owner: Any
    name: str
    behind: bool
    counts: Callable[..., bool] = lambda *_: True


def _is_body(_: object, path: Path) -> bool:
    return Path(path).parent.name == "updates"


def _has_report(_: object, __: object, found: dict[str, Any]) -> bool:
    return any(key.startswith(REPORT) for key in found)


SEALING = {
    "body written": Point(files, "rename_synced", False, _is_body),  # under its temporary name, not synced
    "body renamed": Point(files, "rename_synced", True, _is_body),
    "row in": Point(Ledger, "append", True),
    "update published": Point(Feed, "publish", True),
    "receipts given": Point(Intake, "close", True),
}
"""Of an update in a star run."""
BEAT = {
    "promises are not written": Point(Ledger, "record_directory", False, _has_report),
    "promises are written": Point(Ledger, "record_directory", True, _has_report),
    "before the body": Point(ledger_rows.RowSealer, "_write", False),
    "the body is written": Point(files, "rename_synced", False, _is_body),
    "the body is renamed": Point(files, "rename_synced", True, _is_body),
    "the row is in": Point(Ledger, "append", True),
}
"""Of sealing a beat of a gossip run."""
MEAN = {
    "before the mean": Point(ledger_rows.RowSealer, "write_mean", False),
    "before its file": Point(ledger_rows, "_save_synced", False),
    "its file is in": Point(ledger_rows, "_save_synced", True),
    "its row is in": Point(Ledger, "append", True, lambda _, row, *__: bool(row.extras == {"kind": "mean"})),
}
"""Of sealing the final mean."""
JOURNAL = {
    "a message is confirmed": Point(Neighbours, "confirmed", False),  # first, while the edge is there for certain
    "before the write": Point(GossipJournal, "write", False),
    AMID: Point(journal, "save_tensors", True),
    "written": Point(journal, "save_tensors", True),
    "renamed": Point(NodeState, "rename", True, lambda _, __, name: bool(name == JOURNAL_FILE)),
    "before messages leave": Point(Neighbours, "send", False),
    "messages queued": Point(Neighbours, "send", True),
}
"""Of an iteration of a node in a gossip run."""
POINTS = SEALING | BEAT | MEAN | JOURNAL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(at: str, number: int) -> None:
    point = POINTS[at]
    real: Callable[..., Any] = getattr(point.owner, point.name)
    calls = 0

    def dies(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += point.counts(*arguments)
        if calls != number:
            return real(*arguments, **named)
        if not point.behind:
            die()
        result = real(*arguments, **named)
        if inspect.isawaitable(result):
            return _die_behind(result)
        if at == AMID:
            os.truncate(arguments[1], Path(arguments[1]).stat().st_size // 2)
        return die()

    setattr(point.owner, point.name, dies)


async def _die_behind(result: Any) -> None:
    await result
    die()


def record(file: Path) -> None:
    real = MixChain.extend
    lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def extend(chain: MixChain, turn: Turn) -> None:
        before, hashes = chain.head, [each.hex() for each in chain._hashes[turn]]
        real(chain, turn)
        place = [turn.topology, turn.iteration, turn.peer]
        os.write(lines, (json.dumps([before.hex(), chain.head.hex(), *place, *hashes]) + "\n").encode())

    MixChain.extend = extend  # type: ignore[assignment,method-assign]


def record_rates(file: Path) -> None:
    real = schedule.learning_rate
    lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def learning_rate(spec: ScheduleSpec, step: int) -> float:
        rate = real(spec, step)
        os.write(lines, (json.dumps([step, rate, spec.weight_decay]) + "\n").encode())
        return rate

    vars(work)["learning_rate"] = learning_rate  # where it takes its steps


RECORDS = {"--chain": record, "--rates": record_rates}

if __name__ == "__main__":
    at, number, *rest = sys.argv[1:]
    if rest[0] in RECORDS:
        RECORDS[rest[0]](Path(rest[1]))
        rest = rest[2:]
    if at != NEVER:
        arm(at, int(number))
    program = coordinator if rest[0] == "serve" else node
    sys.argv = ["thinwire-coordinator" if program is coordinator else "thinwire-node", *rest]
    program.main()
