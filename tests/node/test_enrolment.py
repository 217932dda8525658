"""Tests of what a volunteer types, and of what a state directory keeps of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from thinwire_node.storage import enrolment
from thinwire_node.storage.enrolment import Destination, choose, keep, read_destination
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.invite import Invite

INVITE = Invite("swarm.example.org:7700", b"f" * 32, b"t" * 16)


def test_an_invite_a_file_with_one_and_a_local_address_lead_to_a_coordinator(tmp_path: Path) -> None:
    file = tmp_path / "invite"
    file.write_text(f"{INVITE}\n")
    broken = tmp_path / "by mail"
    lines = "\r\n".join(str(INVITE)[start : start + 40] for start in range(0, len(str(INVITE)), 40))
    broken.write_text(
        f"\ufeff\n  {lines}\n", encoding="utf-8"
    )  # a mail breaks lines; Windows' editor begins with a mark
    for typed in (str(INVITE), f" {INVITE}\n", f"@{file}", f"@{broken}", lines, f"\u200b{INVITE}\u200b"):
        assert read_destination(typed) == Destination(INVITE.address, INVITE)
    for address in ("127.0.0.1:7700", "localhost:1", "[::1]:7700"):
        assert read_destination(address) == Destination(address)


@pytest.mark.parametrize("mark", "\u200b\u200c\u200d\u200e\u200f\u202a\u202c\u202e\u2060\u2066\u2068\u2069\ufeff")
def test_an_invite_may_have_unseen_marks_anywhere(mark: str) -> None:
    text = str(INVITE)
    for typed in (mark + text, text + mark, text[:9] + mark + text[9:]):
        assert read_destination(typed).invite == INVITE


@pytest.mark.parametrize(
    "around", ["`{}`", "<{}>", '"{}"', "'{}'", "“{}”", "„{}“", "({}).", "{},", "\u2068<{}>\u2069.\n"]
)
def test_an_invite_may_be_wrapped(around: str) -> None:
    assert read_destination(around.format(INVITE)).invite == INVITE


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
def test_an_invite_may_be_in_a_file_of_windows(tmp_path: Path, encoding: str) -> None:
    """`echo INVITE > FILE` writes the first one in PowerShell 5.1."""
    file = tmp_path / "invite.txt"
    file.write_bytes(f"\ufeff{INVITE}\r\n".encode(encoding))
    assert read_destination(f"@{file}").invite == INVITE


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("localhost", "neither an invite"),
        ("", "neither an invite"),
        ("127.0.0.1:0", "neither an invite"),
        ("swarm.example.org:7700", "ask the organizer for an invite"),
        ("0.0.0.0:7700", "ask the organizer for an invite"),
        (str(INVITE)[:-1], "incomplete or mistyped"),
        ("@/nowhere/invite", "cannot read the invite: No such file"),
        (f"@{__file__}", "there is no invite in this file"),
    ],
)
def test_anything_else_is_refused_with_advice(typed: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_destination(typed)


def test_a_state_directory_keeps_its_coordinator(tmp_path: Path) -> None:
    given = Destination(INVITE.address, INVITE)
    with pytest.raises(ConfigError, match="thinwire-node start INVITE"):
        choose(tmp_path, None)
    assert choose(tmp_path, given) == given
    keep(tmp_path, INVITE)
    assert choose(tmp_path, None) == given
    assert (tmp_path / enrolment.FILE).stat().st_mode & 0o077 == 0

    moved = dataclasses.replace(INVITE, address="swarm.example.org:7711", token=b"u" * 16)
    assert choose(tmp_path, Destination(moved.address, moved)).invite == moved
    keep(tmp_path, moved)
    assert choose(tmp_path, None).invite == moved


def test_a_service_starts_with_the_invite_that_a_start_has_joined_with(tmp_path: Path) -> None:
    """The coordinator has moved, and the volunteer has started the node once with the new invite."""
    moved = dataclasses.replace(INVITE, address="swarm.example.org:7711", token=b"u" * 16)
    keep(tmp_path, INVITE)
    assert not (tmp_path / enrolment.INVITE_FILE).exists()  # no service
    enrolment.write_invite(tmp_path, INVITE)
    keep(tmp_path, moved)
    file = tmp_path / enrolment.INVITE_FILE
    assert read_destination(f"@{file}").invite == choose(tmp_path, None).invite == moved
    assert file.stat().st_mode & 0o077 == 0
    enrolment.write_invite(
        tmp_path, INVITE
    )  # as `install-service` does, while the node runs that has joined with `moved`
    keep(tmp_path, moved)
    assert read_destination(f"@{file}").invite == INVITE


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"invite": 3}', '{"invite": "twi1_"}'])
def test_a_damaged_enrolment_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / enrolment.FILE).write_text(text)
    with pytest.raises(ConfigError, match=enrolment.FILE):
        choose(tmp_path, None)
