"""Tests of the organizer's commands about invites, nodes and bans, on a state directory without a coordinator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.new_state import make_state
from support.sealed_run import make_run
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.hall.access.door import Candidate
from thinwire_coordinator.hall.access.settings import ADDRESS, Pause
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.invite_address import keep_invite_file
from thinwire_coordinator.hall.ledger.identity import open_identity
from thinwire_proto.errors import ConfigError, UsageError
from thinwire_proto.identity.invite import parse_invite
from thinwire_proto.identity.keys import KEY_FILE, PublicKey, SecretKey, open_key

HERE = "127.0.0.1:7700"
NOW = 1_790_000_000.0
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on a state directory, and returns what it prints."""
    open_key(tmp_path / KEY_FILE)

    def command(name: str, *more: str) -> str:
        arguments = parser().parse_args([name, "--state-dir", str(tmp_path), *more])
        arguments.command(arguments)
        return capsys.readouterr().out

    return command


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AccessStore]:
    with closing(AccessStore(tmp_path)) as opened:
        opened.settings.put(ADDRESS, HERE)
        yield opened


def enrol(store: AccessStore, token: bytes, name: str = "ada", now: float = NOW) -> PublicKey:
    key = SecretKey().public
    assert store.admit(Candidate(key, token, name, "192.0.2.1"), now) is None
    return key


def test_the_invite_stands_alone_on_the_last_line(run: Run, store: AccessStore, tmp_path: Path) -> None:
    shown = run("invite", "--name", "for ada", "--expires", "24h")
    found = parse_invite(shown.splitlines()[-1])
    assert (found.address, found.public_tls) == (HERE, False)
    assert found.fingerprint == open_key(tmp_path / KEY_FILE).public.fingerprint
    assert "for one node, expires in 24 hours" in shown
    enrol(store, found.token, now=store.invites.all()[0].made)
    listed: list[dict[str, Any]] = json.loads(run("invites", "--json"))
    (facts,) = listed
    assert (facts["number"], facts["name"], facts["uses"], facts["uses_max"]) == (1, "for ada", 1, 1)
    assert (facts["state"], facts["expires"] - facts["made"]) == ("used_up", 24 * 3600)
    assert found.token.hex() not in run("invites", "--json") + run("invites")


def test_nodes_are_listed_banned_and_unbanned(run: Run, store: AccessStore) -> None:
    token = parse_invite(json.loads(run("invite", "--uses", "3", "--json"))["invite"]).token
    keys = [enrol(store, token, name) for name in ("ada", "[red]bob")]
    ada = keys[0].node_id
    assert "[red]bob" in run("nodes")
    assert "never" in run("nodes")
    store.joined(Candidate(keys[1], b"", "[red]bob", "192.0.2.1"), time.time() - 7200)
    assert "2 hours ago" in run("nodes")
    listed = json.loads(run("nodes", "--json"))
    assert {facts["node"]: facts["name"] for facts in listed} == {ada: "ada", keys[1].node_id: "[red]bob"}
    assert (listed[0]["address"], listed[0]["invite"], listed[0]["ban"]) == ("192.0.2.1", 1, None)
    ban = json.loads(run("ban", ada[:20], "--for", "30m", "--reason", "noise", "--json"))
    assert (ban["node"], ban["until"] - ban["since"], ban["reason"], ban["count"]) == (ada, 1800, "noise", 1)
    assert json.loads(run("nodes", "--json"))[0]["ban"] == ban
    assert "30 minutes" in run("nodes")
    assert "may join" in run("unban", ada)
    store.standings.put({ada: {"suspected": {"noise": "its votes agree with nobody"}}})
    assert json.loads(run("nodes", "--json"))[0]["suspected"] == "its votes agree with nobody"
    assert "suspected" in run("nodes")
    assert json.loads(run("unban", ada, "--reason", "its data are special", "--json")) == {"node": ada}
    assert store.bans.pardoned_since(0) == (3, [ada, ada])
    assert json.loads(run("revoke", "1", "--nodes", "--json"))["banned"] == [key.node_id for key in keys]
    assert json.loads(run("invites", "--json"))[0]["state"] == "revoked"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("revoke", "7"), "there is no invite 7"),
        (("ban", "abc"), "no node has an id that begins with 'abc'"),
        (("ban", ""), "no node has an id"),
        (("ban", "f" * 32), "no node has an id"),
        (("unban", "f" * 32), "no node has an id"),
    ],
)
def test_what_does_not_exist_is_named(run: Run, command: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(*command)


@pytest.mark.parametrize(
    "command",
    [
        ("pause", "--because", "F\udcfcr die Nacht"),
        ("ban", "abc", "--reason", "\udcff"),
        ("invite", "--name", "\udcff"),
        ("ban", "\udcff"),
        ("pause", "--because", "x" * 501),
    ],
)
def test_a_text_that_nobody_could_be_shown_is_refused(run: Run, command: tuple[str, ...]) -> None:
    """A terminal in Latin-1 types such: Python hands on each byte as half a character."""
    with pytest.raises(SystemExit):
        run(*command)


def test_a_pause_from_before_shows_its_reason_without_what_is_no_text(store: AccessStore) -> None:
    store.pauses.begin(Pause(NOW, None, "F\udcfcr die Nacht"))
    pause = store.pauses.at(NOW + 1)
    assert pause is not None
    assert pause.text.encode().endswith(b"r die Nacht")


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59-12:00", "25:00", "8:61"])
def test_a_pause_that_ends_at_no_time_is_refused(run: Run, until: str) -> None:
    with pytest.raises(SystemExit):
        run("pause", "--until", until)


@pytest.fixture
def sealed(tmp_path: Path) -> None:
    """A run of six steps, in whose state directory the commands run."""
    make_run(tmp_path, 6)


@pytest.mark.usefixtures("sealed")
def test_an_amendment_is_shown_ordered_and_withdrawn(run: Run) -> None:
    with pytest.raises(ConfigError, match="cannot change within a run"):
        run("amend", "--set", "model.width=64")
    with pytest.raises(ConfigError, match="must have finite numbers only"):
        run("amend", "--set", "schedule.learning_rate=nan")
    shown = run("amend", "--set", "demo.k=16", "--dry-run")
    assert "→ 16" in shown
    assert "each volunteer" in shown
    assert "no amendments" in run("amend")
    run("amend", "--set", "demo.k=8", "--at", "20", "--because", "to be withdrawn")
    assert "to be withdrawn" in run("amend")
    with pytest.raises(UsageError, match="--withdraw is given alone"):
        run("amend", "--withdraw", "--set", "demo.k=8")
    assert "withdrawn: demo.k = 8" in run("amend", "--withdraw")
    assert "no amendment waits" in run("amend", "--withdraw")


@pytest.mark.usefixtures("sealed")
def test_what_going_back_would_do_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for step in ("9000", "-1"):
        with pytest.raises(ConfigError, match="it can go back to steps 0 to"):
            run("rewind", step)
    assert "nodes drop their momentum" in run("rewind", "5", "--dry-run")


@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_key_of_a_run_is_not_replaced(run: Run, tmp_path: Path, damaged: bool) -> None:
    open_identity(tmp_path)
    make_state(tmp_path).close()
    key = tmp_path / KEY_FILE
    key.write_bytes(b"half a key") if damaged else key.unlink()
    with pytest.raises(ConfigError, match="restore it from a copy; without one, this run has ended: export its model"):
        run("invite", "--address", HERE)
    assert key.exists() == damaged


def test_the_invite_file_keeps_its_token_and_follows_the_address(store: AccessStore, tmp_path: Path) -> None:
    file = tmp_path / "sub" / "invite"
    assert keep_invite_file(file, store, tmp_path, NOW)
    assert file.stat().st_mode & 0o077 == 0
    first = parse_invite(file.read_text())
    enrol(store, first.token)
    assert not keep_invite_file(file, store, tmp_path, NOW)
    assert parse_invite(file.read_text()) == first
    store.settings.put(ADDRESS, "127.0.0.1:7711")
    assert not keep_invite_file(file, store, tmp_path, NOW)
    moved = parse_invite(file.read_text())
    assert (moved.address, moved.token) == ("127.0.0.1:7711", first.token)
    store.invites.revoke(1, NOW)
    assert keep_invite_file(file, store, tmp_path, NOW)
    assert parse_invite(file.read_text()).token != first.token
