"""Invites and nodes as tables for a terminal, and as plain values for JSON and the page. No token is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinwire_common.units import human_seconds
from thinwire_coordinator.access.bans import Ban
from thinwire_coordinator.access.invites import InviteRecord
from thinwire_coordinator.access.store import NodeRecord

ID_DIGITS_SHOWN = 12


def invite_facts(record: InviteRecord, now: float) -> dict[str, Any]:
    return asdict(record) | {"state": record.state(now)}


def node_facts(record: NodeRecord, ban: Ban | None, suspected: str | None) -> dict[str, Any]:
    """suspected: why the node's votes are not merged."""
    facts = asdict(record) | {"public_key": record.public_key.hex(), "ban": ban_facts(ban) if ban else None}
    facts["suspected"] = suspected
    del facts["enrolled_from"]
    return facts


def ban_facts(ban: Ban) -> dict[str, Any]:
    return asdict(ban)


def invites_table(records: Iterable[InviteRecord], now: float) -> None:
    rows = []
    for record in records:
        uses = f"{record.uses} of {record.uses_max}" if record.uses_max is not None else f"{record.uses}"
        expires = "never" if record.expires is None else _when(record.expires)
        kind = "open" if record.is_open else ""
        rows.append((str(record.number), record.state(now), uses, expires, _when(record.made), kind, record.name))
    _print(("id", "state", "uses", "expires", "made", "", "name"), rows)


def nodes_table(
    records: Iterable[NodeRecord], bans: Mapping[str, Ban], suspected: Mapping[str, str], now: float
) -> None:
    rows = []
    for record in records:
        ban = bans.get(record.node)
        text = "" if ban is None else "banned" if ban.until is None else f"banned {human_seconds(ban.until - now)}"
        if why := suspected.get(record.node):
            text = f"{text}; suspected: {why}" if text else f"suspected: {why}"
        node, invite = record.node[:ID_DIGITS_SHOWN], str(record.invite) if record.invite else "none"
        joined = f"{human_seconds(max(now - record.seen, 0.0))} ago"
        rows.append((node, record.name, invite, joined, record.address, text))
    _print(("node", "name", "invite", "last joined", "address", ""), rows)


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title in titles:
        table.add_column(title, overflow="fold", min_width=8 if title == "name" else None)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # literally: strangers choose the names
    Console().print(table)


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M")
