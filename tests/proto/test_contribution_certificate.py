"""A certificate of contribution proves what its coordinator has signed, and nothing else."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.contribution_certificate import ContributionCertificate, read_certificate
from thinwire_proto.identity.keys import SecretKey

KEY = SecretKey(bytes(range(32)))
NODE = "0123456789abcdef" * 2
GOOD = ContributionCertificate("ab" * 32, NODE, 7, 700, 1400, 9, "cd" * 32, 1_800_000_000).signed(KEY)


def test_it_is_read_as_it_was_written() -> None:
    found = read_certificate(GOOD.text())
    assert found == GOOD
    found.check()
    found.check(KEY.public.fingerprint)


@pytest.mark.parametrize("name", [field.name for field in fields(ContributionCertificate)])
def test_no_field_can_be_changed(name: str) -> None:
    value = getattr(GOOD, name)
    other: Any = value + 1 if isinstance(value, int) else ("0" if value[0] != "0" else "1") + value[1:]
    with pytest.raises(ConfigError, match="signature does not fit"):
        read_certificate(replace(GOOD, **{name: other}).text()).check()


def test_another_coordinator_cannot_sign_for_this_one() -> None:
    with pytest.raises(ConfigError, match="another coordinator"):
        GOOD.signed(SecretKey(bytes(32))).check(KEY.public.fingerprint)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kind": "another"}, "another kind"),
        ({"counted": "7"}, "missing or wrong"),
        ({"counted": True}, "missing or wrong"),
        ({"counted": -1}, "out of bounds"),
        ({"tokens": 1 << 64}, "out of bounds"),
        ({"at": 1 << 62}, ""),
        ({"at": -1}, "out of bounds"),
        ({"contract": "xy"}, "hexadecimal"),
        ({"node": "00"}, "node does not have 16 bytes"),
        ({"more": 1}, "field more, which nobody signs"),
        ({"row": None}, "missing or wrong"),
    ],
)
def test_what_is_no_certificate_is_refused(changed: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match="no certificate of contribution: .*" + why):
        read_certificate(json.dumps({**json.loads(GOOD.text()), **changed}))


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "[" * 4000, "{" + " " * 5000 + "}"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no certificate of contribution"):
        read_certificate(text)
