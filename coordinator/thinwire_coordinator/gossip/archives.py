"""Checks archives of messages against the ledger: what a node has mixed, and whether its peers have mixed the same.

A row of a beat names the head of each node's chain. The archive of a node, replayed, passes through all of its heads.
Where the archives of both ends of an edge are here, each turn that one end has mixed is looked up in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.errors import ConfigError, LedgerError, PayloadError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.gossip.archive import OWN, THEIRS, ArchiveHeader, read_archive
from thinwire_proto.gossip.archive_replay import ArchiveReplay
from thinwire_proto.gossip.peer_wire import body_bytes_max


class ReportedHead(NamedTuple):
    """The head of a node's chain in a report that a row counts."""

    step: int
    iteration: int
    head: bytes


@dataclass(frozen=True)
class ReplayedArchive:
    """node: whose it is. heads: how many of the reported ones were checked."""

    node: str
    heads: int
    replay: ArchiveReplay


def archive_header(path: Path, state: RunState) -> ArchiveHeader:
    """Whose archive a file is. Raises ConfigError if it is none of this run."""
    try:
        with path.open("rb") as file:
            header, _ = read_archive(file, _body_bytes_max(state, path))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; give the state directory of a node that ran with --archive-messages"
        ) from None
    except PayloadError as error:
        raise ConfigError(f"{path}: {error}") from None
    if header.contract != state.contract.hash:
        raise ConfigError(f"{path}: it belongs to another run, of contract {header.contract.hex()[:16]}")
    return header


def replay_archive(path: Path, state: RunState, first: Replica, heads: Sequence[ReportedHead]) -> ReplayedArchive:
    """Repeat what a node has mixed, and look for each reported head, in order. Raises LedgerError where one is missing,
    or the archive is damaged."""
    layout = first.layout
    start = torch.cat([first.tensors[tensor.name].reshape(-1).cpu() for tensor in layout.tensors])
    replay, found = ArchiveReplay(layout, start), 0
    with path.open("rb") as file:
        try:
            header, entries = read_archive(file, _body_bytes_max(state, path))
            found = _heads_at(replay, heads, found)
            for entry in entries:
                if replay.take(entry):
                    found = _heads_at(replay, heads, found)
        except PayloadError as error:
            raise LedgerError(f"{path}: {error}") from None
    if found < len(heads):
        missing = heads[found]
        raise LedgerError(
            f"{path}: node {header.node} has reported head {missing.head.hex()[:16]} in iteration {missing.iteration}, "
            "and its messages do not lead to it",
            missing.step,
        )
    return ReplayedArchive(header.node, found, replay)


def report_of(archives: Iterable[ReplayedArchive], say: Callable[[str], None]) -> None:
    """Say what the archives show: of each node, and of the turns whose two ends are both here."""
    archives = list(archives)
    for archive in archives:
        replay, own, theirs = archive.replay, archive.replay.messages[OWN], archive.replay.messages[THEIRS]
        say(
            f"node {archive.node}: its {len(replay.mixed):,} mixed turns lead through all {archive.heads:,} heads that "
            f"it has reported; copies repeated from {own:,} messages of its own and {theirs:,} of its peers"
        )
        if replay.differences:
            say(f"node {archive.node}: {replay.differences} times, a copy was not what its peer said; none was mixed")
    here = {number for archive in archives for number in archive.replay.numbers}
    mixed = {turn for archive in archives for turn in archive.replay.mixed if turn.peer in here}
    alone = sum(turn.of_the_peer() not in mixed for turn in mixed)
    if mixed:
        both = (len(mixed) - alone) // 2
        say(f"of the turns whose two ends are both here, {both:,} were mixed by both, and {alone:,} by one end alone")


def _heads_at(replay: ArchiveReplay, heads: Sequence[ReportedHead], found: int) -> int:
    """How many reported heads are found, once those that are the replay's are."""
    while found < len(heads) and heads[found].head == replay.head:
        found += 1
    return found


def _body_bytes_max(state: RunState, path: Path) -> int:
    exchange = state.contract.exchange
    if not isinstance(exchange, GossipSpec):
        raise ConfigError(f"{path}: the nodes of this run mix nothing; leave --messages out")
    layout = layout_of(state.contract.parameters)
    return body_bytes_max(layout, exchange.codec)
