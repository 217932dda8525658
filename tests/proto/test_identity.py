"""Keys, what they sign, and the invite."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from thinwire_proto.errors import ConfigError
from thinwire_proto.identity import statements
from thinwire_proto.identity.invite import Invite, parse_invite
from thinwire_proto.identity.keys import SMALL_ORDER, PublicKey, SecretKey, open_key

INVITE = Invite("coordinator.example:7700", bytes(range(32)), bytes(range(16)))


def test_a_signature_fits_its_key_and_its_statement_only() -> None:
    key, other = SecretKey(), SecretKey()
    statement = statements.contribution(b"n" * 32, 8)
    signature = key.sign(statement)
    assert key.public.verifies(signature, statement)
    assert not other.public.verifies(signature, statement)
    assert not key.public.verifies(signature, statements.contribution(b"n" * 32, 9))
    assert not key.public.verifies(signature, statements.row(b"n" * 32))
    assert not key.public.verifies(signature[:-1], statement)
    assert not PublicKey(b"short").verifies(signature, statement)


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("point", sorted(SMALL_ORDER))
def test_a_key_of_small_order_proves_nothing(point: bytes, sign: int) -> None:
    """Its signatures can be made without a secret: the library takes at least one of these, and we take none."""
    data = point[:-1] + bytes([point[-1] | sign])
    made_up = [(other + bytes(32), statements.row(b"%d" % number)) for other in SMALL_ORDER for number in range(32)]
    library = Ed25519PublicKey.from_public_bytes(data)
    taken = 0
    for signature, statement in made_up:
        with suppress(InvalidSignature):
            library.verify(signature, statement)
            taken += 1
        assert not PublicKey(data).verifies(signature, statement)
    assert taken > 0


def test_parts_of_a_statement_cannot_move_into_each_other() -> None:
    assert statements.join(b"ab", b"c", b"d") != statements.join(b"a", b"bc", b"d")


def test_a_node_id_is_the_first_half_of_the_keys_hash() -> None:
    key = SecretKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")).public
    assert key.data.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"  # RFC 8032, 7.1
    assert key.node_id == "21fe31dfa154a261626bf854046fd227"  # of `xxd -r -p | sha256sum`


def test_a_key_file_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    key = open_key(path)
    assert open_key(path).data == key.data
    assert [file.name for file in tmp_path.iterdir()] == ["identity.key"]
    if os.name != "nt":
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        with pytest.raises(ConfigError, match=r"other users can read this key.*chmod 600"):
            open_key(path)


def test_a_damaged_key_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(b"half a key")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"not a key of 32 bytes; restore it from a copy$"):
        open_key(path)
    with pytest.raises(ConfigError, match=r"restore it from a copy; without one, ask the organizer$"):
        open_key(path, "ask the organizer")
    assert path.read_bytes() == b"half a key"


@pytest.mark.parametrize("address", ["coordinator.example:7700", "203.0.113.7:443", "[2001:db8::1]:7700"])
@pytest.mark.parametrize("public_tls", [False, True])
def test_an_invite_is_one_word_that_reads_back(address: str, public_tls: bool) -> None:
    invite = Invite(address, bytes(range(32)), bytes(range(16)), public_tls)
    text = str(invite)
    assert parse_invite(f" {text}\n") == invite
    assert text.isascii()
    assert text.replace("-", "_").isidentifier()  # a double click selects all of it, and no shell changes it


def test_a_token_is_not_shown_by_accident() -> None:
    assert "token" not in repr(INVITE)


@given(st.integers(0), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_mistyped_invite_is_noticed(position: int, letter: str) -> None:
    text = str(INVITE)
    position %= len(text)
    changed = text[:position] + letter + text[position + 1 :]
    if changed != text:
        with pytest.raises(ConfigError):
            parse_invite(changed)
