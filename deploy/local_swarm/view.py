"""What one sees while a local swarm runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from thinwire_proto.service_pb2 import StatusReply

PLAIN_EVERY_S = 5.0
RATE_OVER_S = 10.0


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def equality(status: StatusReply) -> str:
    """Replicas equal or not, in words."""
    compared, different = status.fingerprints_compared, status.fingerprints_different
    if not compared:
        return "not compared yet"
    return f"equal, {compared} times compared" if not different else f"{different} of {compared} comparisons DIFFER"


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
        """It was closed. make keeps the signal that says so to itself, and waits for us."""
        return self._live is not None and not sys.stdout.isatty()

    def show(self, status: StatusReply) -> None:
        rate = self._tokens_per_second(status.tokens)
        if self._live:
            self._live.update(Group(*self._table(status, rate)))
        elif time.monotonic() - self._printed_at > PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            loss = f"loss {status.loss_newest:.3f}" if status.HasField("loss_newest") else "loss not measured yet"
            self._console.print(
                f"step {status.step}/{status.steps}  {loss}  {rate:,.0f} tokens/s  "
                f"up {human_bytes(status.bytes_up)}  down {human_bytes(status.bytes_down)}  "
                f"replicas {equality(status)}  ({status.state})",
            )

    def _tokens_per_second(self, tokens: int) -> float:
        now = time.monotonic()
        self._history.append((now, tokens))
        while now - self._history[0][0] > RATE_OVER_S:
            self._history.popleft()
        (then, before) = self._history[0]
        return (tokens - before) / (now - then) if now > then else 0.0

    def _table(self, status: StatusReply, rate: float) -> list[Table | Text]:
        facts = Table.grid(padding=(0, 2))
        facts.add_row("round", f"{status.round} ({status.rounds_void} void)", "state", status.state)
        newest = (
            f"{status.loss_newest:.3f} at step {status.loss_newest_step}" if status.HasField("loss_newest") else "–"
        )
        training = f"{status.loss_training:.3f}" if status.HasField("loss_training") else "–"
        facts.add_row("held-out loss", newest, "training loss", training)
        facts.add_row("tokens/s", f"{rate:,.0f}", "tokens", f"{status.tokens:,}")
        facts.add_row("bytes up", human_bytes(status.bytes_up), "bytes down", human_bytes(status.bytes_down))
        style = "bold red" if status.fingerprints_different else "green"
        facts.add_row("replicas", Text(equality(status), style=style))
        nodes = Table(box=None, padding=(0, 2), header_style="dim")
        for title in ("node", "counted", "not counted", "tokens", "up", "down", "replica"):
            nodes.add_column(title, justify="left" if title in ("node", "replica") else "right")
        for node in sorted(status.nodes, key=lambda node: node.name):
            replica = ("equal" if node.replica_equal else "DIFFERS") if node.HasField("replica_equal") else "–"
            nodes.add_row(
                node.name,
                str(node.counted),
                str(node.not_counted),
                f"{node.tokens:,}",
                human_bytes(node.bytes_up),
                human_bytes(node.bytes_down),
                replica if node.active else f"{replica} (away)",
            )
        heading = Text(f"thinwire · step {status.step} of {status.steps}", style="bold")
        progress = Table.grid()  # a bar alone does not end its line
        progress.add_row(ProgressBar(total=status.steps, completed=status.step, width=60))
        return [heading, progress, Text(), facts, Text(), nodes]
