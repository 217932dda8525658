"""The commands that say who may join, and whether the run is paused.

They work on access.sqlite, whether or not the coordinator runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinwire_common.units import human_seconds, parse_seconds
from thinwire_coordinator.hall.access.invites import EXPIRES, OPEN_PER_ADDRESS, InviteRecord
from thinwire_coordinator.hall.access.settings import Pause
from thinwire_coordinator.hall.access.store import NEVER, ORGANIZER, AccessStore, Ban, NodeRecord
from thinwire_coordinator.hall.invite_address import make_invite
from thinwire_coordinator.hall.ledger.identity import open_existing_identity
from thinwire_coordinator.hall.standby.standing import check_orders
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.keys import NODE_ID_DIGITS

ID_DIGITS_SHOWN = 12
LISTS = ("invites", "nodes")
"""The commands that change nothing."""


def _invites_table(records: Iterable[InviteRecord], now: float) -> None:
    rows = []
    for record in records:
        uses = f"{record.uses} of {record.uses_max}" if record.uses_max is not None else f"{record.uses}"
        expires = "never" if record.expires is None else _when(record.expires)
        kind = "open" if record.is_open else ""
        rows.append((str(record.number), record.state(now), uses, expires, _when(record.made), kind, record.name))
    _print(("id", "state", "uses", "expires", "made", "", "name"), rows)


def _nodes_table(
    records: Iterable[NodeRecord], bans: Mapping[str, Ban], suspected: Mapping[str, str], now: float
) -> None:
    rows = []
    for record in records:
        ban = bans.get(record.node)
        text = "" if ban is None else "banned" if ban.until is None else f"banned {human_seconds(ban.until - now)}"
        if why := suspected.get(record.node):
            text = f"{text}; suspected: {why}" if text else f"suspected: {why}"
        node, invite = record.node[:ID_DIGITS_SHOWN], str(record.invite) if record.invite else "none"
        joined = "never" if record.seen == NEVER else f"{human_seconds(max(now - record.seen, 0.0))} ago"
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


def run(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Run one of the commands on a state directory. Raises ThinwireError."""
    open_existing_identity(folder)
    if name not in LISTS:
        check_orders(folder)
    with closing(AccessStore(folder)) as store:
        COMMANDS[name](store, folder, arguments)


def _invite(store: AccessStore, folder: Path, arguments: argparse.Namespace) -> None:
    now = time.time()
    uses_max = arguments.uses or (None if arguments.open else 1)
    length_s = arguments.expires if "expires" in arguments else None if arguments.open else parse_seconds(EXPIRES)
    record, invite = make_invite(
        store,
        folder,
        now,
        name=arguments.name,
        address=arguments.address,
        uses_max=uses_max,
        per_address_max=arguments.per_address or (OPEN_PER_ADDRESS if arguments.open else None),
        expires=None if length_s is None else now + length_s,
    )
    if arguments.json:
        _print_json(asdict(record) | {"state": record.state(now)} | {"address": invite.address, "invite": str(invite)})
        return
    nodes = "any number of nodes" if uses_max is None else "one node" if uses_max == 1 else f"{uses_max} nodes"
    end = "does not expire" if length_s is None else f"expires in {human_seconds(length_s)}"
    print(f"invite {record.number}: for {nodes}, {end}, leads to {invite.address}")
    if record.per_address_max is not None:
        print(f"at most {record.per_address_max} nodes a day from one address")
    print("a volunteer types: thinwire-node start INVITE, with this text as INVITE:")
    print(invite)


def _invites(store: AccessStore, folder: Path, arguments: argparse.Namespace) -> None:
    now, found = time.time(), store.invites.all()
    if arguments.json:
        _print_json([asdict(record) | {"state": record.state(now)} for record in found])
    else:
        _invites_table(found, now)


def _revoke(store: AccessStore, folder: Path, arguments: argparse.Namespace) -> None:
    now, number = time.time(), arguments.number
    if store.invites.of(number) is None:
        raise ConfigError(f"there is no invite {number}; `thinwire-coordinator invites` lists them")
    banned = store.revoke(number, now, nodes=arguments.nodes, by=ORGANIZER)
    if arguments.json:
        _print_json({"number": number, "banned": banned})
        return
    stay = f"; {len(banned)} nodes banned" if arguments.nodes else "; nodes that enrolled with it stay (--nodes bans)"
    print(f"invite {number} is revoked{stay}")


def _nodes(store: AccessStore, folder: Path, arguments: argparse.Namespace) -> None:
    now, found = time.time(), store.nodes.all()
    bans, suspected = store.bans.holding(now), store.standings.suspected()
    if arguments.json:
        _print_json([_facts(record, bans.get(record.node), suspected.get(record.node)) for record in found])
    else:
        _nodes_table(found, bans, suspected, now)


def _facts(record: NodeRecord, ban: Ban | None, suspected: str | None) -> dict[str, Any]:
    """suspected: why the node's votes are not merged."""
    facts = asdict(record) | {"public_key": record.public_key.hex(), "ban": asdict(ban) if ban else None}
    del facts["enrolled_from"]
    return facts | {"suspected": suspected}


def _ban(store: AccessStore, folder: Path, arguments: argparse.Namespace) -> None:
    now, node, length_s = time.time(), _node(store, arguments.node), arguments.length_s
    ban = store.bans.ban(node, None if length_s is None else now + length_s, arguments.reason, ORGANIZER, now)
    if arguments.json:
        _print_json(asdict(ban))
    else:
        print(f"{node} is banned {'until you unban it' if length_s is None else f'for {human_seconds(length_s)}'}")


def _unban(store: AccessStore, folder: Path, arguments: argparse.Namespace) -> None:
    now, node = time.time(), _node(store, arguments.node)
    ban = store.bans.of(node)
    if not (ban and ban.holds(now)) and not store.standings.of(node).get("suspected"):
        raise ConfigError(f"{node} is neither banned nor suspected")
    store.bans.unban(node, arguments.reason, ORGANIZER, now)
    store.standings.pardon(node)  # for a coordinator that does not run; one that runs reads the decision
    if arguments.json:
        _print_json({"node": node})
    else:
        print(f"{node} may join; what the coordinator had against it is forgotten")


def _pause(store: AccessStore, folder: Path, arguments: argparse.Namespace) -> None:
    now = time.time()
    until = arguments.until if arguments.length_s is None else now + arguments.length_s
    pause = Pause(now, until, arguments.because)
    store.pauses.begin(pause)
    if arguments.json:
        _print_json(asdict(pause))
        return
    print(f"the run is {pause.text}")
    print("an open round is still sealed; `thinwire-coordinator resume` lets the run go on at once")


def _resume(store: AccessStore, folder: Path, arguments: argparse.Namespace) -> None:
    pause = store.pauses.at(time.time())
    if pause is None:
        raise ConfigError("the run is not paused")
    store.pauses.end()
    if arguments.json:
        _print_json({"paused_since": pause.since})
    else:
        print("the run goes on, once its coordinator runs")


def _node(store: AccessStore, given: str) -> str:
    """The id of an enrolled node from its first digits. Raises ConfigError."""
    digits = given.lower()
    found = store.nodes.beginning_with(digits) if digits else []
    if len(found) > 1:
        raise ConfigError(f"{len(found)} nodes have an id that begins with {given}; give more digits")
    if not found and len(digits) == NODE_ID_DIGITS and store.bans.of(digits) is not None:
        return digits  # the coordinator may have forgotten a node that was away for long, but not its ban
    if not found:
        raise ConfigError(f"no node has an id that begins with {given!r}; `thinwire-coordinator nodes` lists them")
    return found[0]


def _print_json(found: Any) -> None:
    print(json.dumps(found, indent=2))


COMMANDS: dict[str, Callable[[AccessStore, Path, argparse.Namespace], None]] = {
    "invite": _invite,
    "invites": _invites,
    "revoke": _revoke,
    "nodes": _nodes,
    "ban": _ban,
    "unban": _unban,
    "pause": _pause,
    "resume": _resume,
}
