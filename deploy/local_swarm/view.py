"""The display of a running local swarm: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType

from rich.console import Console
from rich.live import Live

from thinwire_common.units import human_bytes
from thinwire_coordinator.cli.status import disagreement, equality, table
from thinwire_proto.wire.service_pb2 import StatusReply

PLAIN_EVERY_S = 5.0
RATE_OVER_S = 10.0


class View:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._history: deque[tuple[float, int]] = deque()  # (time, tokens)
        self._printed_at = 0.0

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    @property
    def terminal_is_gone(self) -> bool:
        """Whether the terminal was closed. make does not pass SIGHUP on, so this must be polled."""
        return self._live is not None and not sys.stdout.isatty()

    def show(self, status: StatusReply, *, last: bool = False) -> None:
        """Show the swarm. Plain lines come at most every PLAIN_EVERY_S, but the last one always comes."""
        rate = self._tokens_per_second(status.tokens)
        if self._live:
            self._live.update(table(status, rate))
        elif last or time.monotonic() - self._printed_at > PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            unit, agreement = "step", f"replicas {equality(status)}"
            if status.HasField("gossip"):
                unit, agreement = "iteration", f"disagreement {disagreement(status.gossip)}"
            self._console.print(
                f"{unit} {status.step}/{status.steps}  {_losses(status, unit)}  {rate:,.0f} tokens/s  "
                f"up {human_bytes(status.bytes_up)}  down {human_bytes(status.bytes_down)}  "
                f"{agreement}  ({status.state})",
            )

    def _tokens_per_second(self, tokens: int) -> float:
        now = time.monotonic()
        self._history.append((now, tokens))
        while now - self._history[0][0] > RATE_OVER_S:
            self._history.popleft()
        (then, before) = self._history[0]
        return (tokens - before) / (now - then) if now > then else 0.0


def _losses(status: StatusReply, unit: str) -> str:
    """The training loss, which each round changes, and the held-out loss, which is measured seldom."""
    training = f"training loss {status.loss_training:.3f}, " if status.HasField("loss_training") else ""
    if not status.HasField("loss_newest"):
        return f"{training}held-out loss not measured yet"
    return f"{training}held-out loss {status.loss_newest:.3f} at {unit} {status.loss_newest_step}"
