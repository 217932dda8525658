"""The summary of a local swarm: its loss, its bytes, and whether all replicas are equal."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from thinwire_common.units import human_bytes
from thinwire_coordinator.cli.status import disagreement
from thinwire_proto.all_reduce import ring_bytes
from thinwire_proto.wire.service_pb2 import StatusReply


@dataclass(frozen=True)
class SwarmOutcome:
    """The result of a run. left: (step, fingerprint) by node as reported when it left; None if it reported nothing."""

    status: StatusReply
    left: dict[str, tuple[int, int] | None]
    verified: bool
    verify_text: str
    sample: str
    folder: Path
    seconds: float

    @property
    def replicas_equal(self) -> bool:
        own = (self.status.step, self.status.fingerprint)
        return not self.status.fingerprints_different and all(found == own for found in self.left.values())

    @property
    def loss_fell(self) -> bool:
        has_both = self.status.HasField("loss_first") and self.status.loss_newest_step > 0
        return has_both and self.status.loss_newest < self.status.loss_first

    @property
    def without_centre(self) -> bool:
        return self.status.HasField("gossip")

    @property
    def passed(self) -> bool:
        return (self.without_centre or self.replicas_equal) and self.loss_fell and self.verified


def print_summary(outcome: SwarmOutcome, console: Console) -> None:
    status = outcome.status
    nodes = len(outcome.left)
    console.print()
    console.rule("summary", align="left")
    table = Table.grid(padding=(0, 2))
    newest = f"{status.loss_newest:.3f}" if outcome.loss_fell or status.loss_newest_step else "not measured"
    table.add_row("held-out loss", f"{status.loss_first:.3f} → {newest} nats per byte")
    rate = status.tokens / outcome.seconds if outcome.seconds else 0
    unit = "iterations of each node" if outcome.without_centre else "steps"
    table.add_row(
        "trained", f"{status.step} {unit}, {status.tokens:,} tokens in {outcome.seconds:.0f} s, {rate:,.0f} tokens/s"
    )
    if outcome.without_centre:
        gossip = status.gossip
        table.add_row("disagreement", disagreement(gossip))
        table.add_row("exchange", f"{gossip.codec}; topology {gossip.topology}, {gossip.beats} beats sealed")
    console.print(table)
    _print_bytes(status, nodes, console)
    if outcome.without_centre:
        _print_model(outcome.folder, status, console)
    else:
        _print_replicas(outcome, console)
    if not outcome.loss_fell:
        console.print("the held-out loss did NOT fall", style="bold red")
    console.print(outcome.verify_text, style=None if outcome.verified else "bold red")
    console.print("\na sample from the model:", style="dim")
    console.print(outcome.sample)
    console.print(f"\nstate and logs: {outcome.folder}")


def _print_replicas(outcome: SwarmOutcome, console: Console) -> None:
    status, nodes = outcome.status, len(outcome.left)
    fingerprints = Table(
        title="fingerprints, as computed by each process", title_justify="left", box=None, padding=(0, 2)
    )
    fingerprints.add_column("replica")
    fingerprints.add_column("step", justify="right")
    fingerprints.add_column("fingerprint")
    fingerprints.add_row("coordinator", str(status.step), f"{status.fingerprint:016x}")
    for name, found in outcome.left.items():
        step, number = (str(found[0]), f"{found[1]:016x}") if found else ("–", "not reported, see its log")
        fingerprints.add_row(name, step, number)
    console.print(fingerprints)
    if outcome.replicas_equal:
        words = (
            f"all {nodes + 1} replicas are bitwise equal, as in all {status.fingerprints_compared} earlier comparisons"
        )
        console.print(words, style="green")
    else:
        console.print("the replicas are NOT proven equal", style="bold red")


def _print_bytes(status: StatusReply, nodes: int, console: Console) -> None:
    without = status.HasField("gossip")
    ring = ring_bytes(nodes) * status.parameters * status.step
    table = Table(
        title=f"bytes per node over the whole run, and per parameter and {'iteration' if without else 'round'}",
        title_justify="left",
        box=None,
        padding=(0, 1 if without else 2),  # with the columns of the lines, 80 characters are few
    )
    for title in ("", "sent", "received", *(("direct", "relay") if without else ()), "per parameter", "fewer"):
        table.add_column(title, justify="left" if not title else "right", overflow="fold")
    per_round = max(1, status.parameters * status.step)
    for node in sorted(status.nodes, key=lambda node: node.name):
        total = node.bytes_up + node.bytes_down
        fewer = f"{ring / total:,.0f}×" if total and ring else "–"
        lines = (node.direct_up + node.direct_down, node.relay_up + node.relay_down) if without else ()
        moved = [human_bytes(count) for count in (node.bytes_up, node.bytes_down, *lines)]
        table.add_row(node.name, *moved, f"{total / per_round:.4f} B", fewer)
    if ring:
        moved = [human_bytes(ring / 2)] * 2 + [""] * (2 if without else 0)
        table.add_row("fp32 all-reduce", *moved, f"{ring / per_round:.4f} B", "")
    console.print(table)
    fetched = max((node.bytes_fetched for node in status.nodes), default=0)
    console.print(f"(plus {human_bytes(fetched)} of corpus and snapshot, once at the start)", style="dim")


def _print_model(folder: Path, status: StatusReply, console: Console) -> None:
    """Print how many nodes the model is the mean of, and the command that exports it."""
    nodes = status.gossip.deposits
    console.print(f"the model is the exact mean of the parameters of {nodes} nodes, which `export` gives:")
    words = "thinwire-coordinator", "export", "--state-dir", str(folder / "coordinator"), "--out", "MODEL"
    console.print(f"  {shlex.join(words)}", style="dim", soft_wrap=True, markup=False)
