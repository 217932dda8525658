"""A real coordinator that also prints when rounds open and are sealed, as one JSON object per line.

    python -m bench.speed.watched RUN.toml STATE_DIR NODES INVITE_FILE

Times are in seconds of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from thinwire_coordinator.coordinator import Coordinator
from thinwire_coordinator.hall.events import ContributionTaken, Event, RoundOpened, RoundSealed
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.planning.problems import read_run

NEVER = 1 << 30
"""Rounds between two measurements of the held-out loss, which must not disturb this benchmark."""


def event_line(event: Event) -> dict[str, Any] | None:
    """The JSON object for an event; None if it is not reported."""
    match event:
        case RoundOpened():
            return {"opened": event.round, "at": event.at}
        case ContributionTaken():
            return {"taken": event.round, "open_s": event.after_open_s + event.before_deadline_s}
        case RoundSealed():
            done_s = event.gather_s + event.merge_s + event.seal_s
            return {"sealed": event.round, "step": event.step, "done_s": done_s, "bytes": event.update_bytes}
    return None


def _print_line(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _print_event(event: Event) -> None:
    if (line := event_line(event)) is not None:
        _print_line(line)


def main() -> None:
    run, state_dir, nodes, invite_file = sys.argv[1:]

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        settings = CoordinatorSettings(
            Path(state_dir), "127.0.0.1:0", read_run(Path(run)), int(nodes), NEVER, invite_file=Path(invite_file)
        )
        await Coordinator(settings, [_print_event], lambda port: _print_line({"port": port})).run(stop)

    uvloop.run(serve())


if __name__ == "__main__":
    main()
