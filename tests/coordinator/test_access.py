"""Tests of the access store: who may join, and why not."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from thinwire_coordinator.hall.access.database import FILE
from thinwire_coordinator.hall.access.door import Candidate, Challenges, DoorReason
from thinwire_coordinator.hall.access.invites import ADDRESS_EVERY_S, InviteRecord, why_not
from thinwire_coordinator.hall.access.store import NEVER, SEEN_EVERY_S, AccessStore, Ban, NodeRecord
from thinwire_proto.errors import ThinwireError
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.limits import CHALLENGE_S

NOW = 1_790_000_000.0
TOKEN = b"t" * 16
OTHER = b"o" * 16


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AccessStore]:
    with closing(AccessStore(tmp_path)) as opened:
        yield opened


def candidate(token: bytes = TOKEN, *, address: str = "192.0.2.1", key: PublicKey | None = None) -> Candidate:
    return Candidate(key or SecretKey().public, token, "ada", address)


def reason(store: AccessStore, someone: Candidate, now: float = NOW) -> DoorReason | None:
    """Return the reason for which the store refuses a candidate; None if it admits it."""
    denied = store.admit(someone, now)
    assert denied is None or denied.text
    return denied.reason if denied else None


def invite(**fields: float | None) -> InviteRecord:
    record = {"uses": 0, "uses_max": None, "per_address_max": None, "made": NOW, "expires": None, "revoked": None}
    return InviteRecord(number=1, name="", **(record | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "from_address", "expected"),
    [
        (invite(), 9, None),
        (invite(uses=1, uses_max=2, expires=NOW + 1), 0, None),
        (invite(uses=2, uses_max=2), 0, DoorReason.USED_UP),
        (invite(expires=NOW), 0, DoorReason.EXPIRED),
        (invite(revoked=NOW, expires=NOW, uses=1, uses_max=1), 0, DoorReason.REVOKED),
        (invite(per_address_max=3), 2, None),
        (invite(per_address_max=3), 3, DoorReason.RATE),
    ],
)
def test_an_invite_admits_or_says_why_not(record: InviteRecord, from_address: int, expected: DoorReason | None) -> None:
    denied = why_not(record, from_address, NOW)
    assert (denied.reason if denied else None) == expected


def test_a_node_enrols_once_and_comes_back_without_a_token(store: AccessStore) -> None:
    made = store.invites.make(TOKEN, name="for ada", now=NOW, uses_max=1)
    key = SecretKey().public
    assert reason(store, candidate(b"", key=key)) is DoorReason.NO_INVITE
    assert reason(store, candidate(OTHER, key=key)) is DoorReason.UNKNOWN_TOKEN
    assert store.nodes.all() == []
    assert reason(store, candidate(key=key)) is None
    assert reason(store, candidate()) is DoorReason.USED_UP
    later = NOW + SEEN_EVERY_S
    back = candidate(b"", key=key, address="192.0.2.9")
    assert reason(store, back, later) is None
    enrolled = NodeRecord(key.node_id, key.data, "ada", made.number, NOW, "192.0.2.1", NEVER, "192.0.2.1")
    assert store.nodes.all() == [enrolled]  # the run may still refuse it
    store.joined(back, later)
    assert store.nodes.all() == [replace(enrolled, seen=later, address="192.0.2.9")]
    (kept,) = store.invites.all()
    assert (kept.uses, kept.state(later)) == (1, "used_up")


def test_a_revoked_invite_lets_its_nodes_back_in_unless_they_are_banned_with_it(store: AccessStore) -> None:
    made = store.invites.make(TOKEN, name="", now=NOW)
    keys = [SecretKey().public for _ in range(2)]
    for key in keys:
        assert reason(store, candidate(key=key)) is None
    assert store.revoke(made.number, NOW) == []
    assert reason(store, candidate()) is DoorReason.REVOKED
    assert reason(store, candidate(key=keys[0])) is None
    assert sorted(store.revoke(made.number, NOW + 1, nodes=True)) == sorted(key.node_id for key in keys)
    assert store.revoke(made.number, NOW + 2, nodes=True) == []  # they are banned already
    assert reason(store, candidate(key=keys[0])) is DoorReason.BANNED
    assert [decision.what for decision in store.bans.decisions(9)] == ["banned", "banned"]


def test_a_ban_ends_and_says_how_long_it_lasts(store: AccessStore) -> None:
    store.invites.make(TOKEN, name="", now=NOW)
    key = SecretKey().public
    assert reason(store, candidate(key=key)) is None
    store.bans.ban(key.node_id, NOW + 600, "it voted at random", "coordinator", NOW)
    denied = store.admit(candidate(key=key), NOW + 300)
    assert denied is not None
    assert denied.reason is DoorReason.BANNED
    assert denied.text == "this node is banned for 5 minutes more: it voted at random"
    assert set(store.bans.holding(NOW + 300)) == {key.node_id}
    assert store.bans.holding(NOW + 600) == {}
    assert reason(store, candidate(key=key), NOW + 600) is None
    again = store.bans.ban(key.node_id, None, "", "organizer", NOW + 700)
    assert again == Ban(key.node_id, NOW + 700, None, "", "organizer", 2)
    denied = store.admit(candidate(key=key), NOW + 1e9)
    assert denied is not None
    assert denied.text == "this node is banned until the organizer lifts it"
    assert store.bans.unban(key.node_id, "a mistake", "organizer", NOW + 2e9)
    assert not store.bans.unban(key.node_id, "twice", "organizer", NOW + 2e9)
    assert reason(store, candidate(key=key), NOW + 2e9) is None
    assert [(found.what, found.by) for found in store.bans.decisions(9)] == [
        ("unbanned", "organizer"),
        ("unbanned", "organizer"),
        ("banned", "organizer"),
        ("banned", "coordinator"),
    ]


def test_an_open_invite_bounds_the_nodes_of_one_address_in_a_day(store: AccessStore) -> None:
    store.invites.make(TOKEN, name="", now=NOW, per_address_max=2)
    home = ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::3"]
    found = [reason(store, candidate(address=address)) for address in home]
    assert found == [None, None, DoorReason.RATE]
    assert reason(store, candidate(address="2001:db8:0:1::1")) is None
    assert reason(store, candidate(address=home[2]), NOW + ADDRESS_EVERY_S) is None


def test_without_need_of_an_invite_everybody_enrols_but_the_banned(tmp_path: Path) -> None:
    with closing(AccessStore(tmp_path, needs_invite=False)) as store:
        key = SecretKey().public
        assert reason(store, candidate(b"", key=key)) is None
        assert reason(store, candidate(OTHER)) is None
        store.bans.ban(key.node_id, None, "", "organizer", NOW)
        assert reason(store, candidate(b"", key=key)) is DoorReason.BANNED


def test_a_node_that_came_without_an_invite_needs_one_once_they_are_needed(tmp_path: Path) -> None:
    key = SecretKey().public
    with closing(AccessStore(tmp_path, needs_invite=False)) as store:
        assert reason(store, candidate(b"", key=key)) is None
    with closing(AccessStore(tmp_path)) as store:
        assert reason(store, candidate(b"", key=key)) is DoorReason.NO_INVITE
        store.invites.make(TOKEN, name="", now=NOW)
        assert reason(store, candidate(key=key)) is None
        assert reason(store, candidate(b"", key=key)) is None


def test_a_challenge_is_taken_once_and_in_time_and_where_it_was_given() -> None:
    challenges = Challenges(random.Random(1))
    one, late = (challenges.give(NOW) for _ in range(2))
    assert not Challenges(random.Random(2)).take(one, NOW)
    assert not challenges.take(bytes([one[0] ^ 1, *one[1:]]), NOW)
    assert challenges.take(one, NOW + CHALLENGE_S)
    assert not challenges.take(one, NOW + CHALLENGE_S)
    assert not challenges.take(late, NOW + CHALLENGE_S + 0.001)


def test_neither_tokens_nor_readers_get_out_of_the_file(store: AccessStore, tmp_path: Path) -> None:
    store.invites.make(TOKEN, name="", now=NOW)
    for file in tmp_path.glob(f"{FILE}*"):
        assert TOKEN not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0


def test_a_newer_or_damaged_file_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / FILE
    AccessStore(tmp_path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(ThinwireError, match=r"schema version 99; this is thinwire"):
        AccessStore(tmp_path)
    path.write_bytes(b"?" * 5000)
    with pytest.raises(ThinwireError, match=FILE):
        AccessStore(tmp_path)
