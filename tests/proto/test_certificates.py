"""The coordinator's certificates: made, kept, renewed in time, and given by the organizer."""

from __future__ import annotations

import asyncio
import logging
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509

from thinwire_coordinator.hall.access.transport import GivenCertificates, OwnCertificates, Rotation
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.certificates import Certificate, new_authority, new_leaf, why_renew_leaf
from thinwire_proto.identity.keys import SecretKey

NOW = datetime(2026, 11, 22, tzinfo=timezone.utc)
KEY = SecretKey(bytes(range(32)))
DAY = timedelta(days=1)


def own(
    folder: Path, now: datetime = NOW, key: SecretKey = KEY, hosts: tuple[str, ...] = ("192.0.2.7",)
) -> Certificate:
    return OwnCertificates(folder / "tls", key, hosts, now).current


def test_only_the_owner_reads_the_keys(tmp_path: Path) -> None:
    own(tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert modes["authority.pem"] == modes["server.pem"] == 0o600
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert b"PRIVATE" not in (tmp_path / "tls" / "ca.pem").read_bytes()


def test_a_key_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    before = own(tmp_path)
    (tmp_path / "tls" / "server.pem").chmod(0o644)
    assert own(tmp_path) != before


@pytest.mark.parametrize("damage", [b"", b"x", b"-----BEGIN CERTIFICATE-----\n"])
@pytest.mark.parametrize("name", ["authority.pem", "server.pem"])
def test_a_damaged_file_is_replaced(tmp_path: Path, name: str, damage: bytes) -> None:
    before = own(tmp_path)
    (tmp_path / "tls" / name).write_bytes(damage)
    assert own(tmp_path) != before
    assert own(tmp_path) == own(tmp_path)


@pytest.mark.parametrize(
    ("days", "reason"),
    [(0, None), (19, None), (21, "expires on 2026-12-22"), (31, "expires"), (-2, "the machine's clock was wrong")],
)
def test_a_certificate_is_renewed_in_time(days: int, reason: str | None) -> None:
    authority = new_authority(NOW)
    found = why_renew_leaf(new_leaf(authority, KEY, [], NOW), authority, KEY, [], NOW + days * DAY)
    assert found is None if reason is None else reason in str(found)


def test_a_host_that_no_certificate_can_name_is_an_error_in_a_sentence() -> None:
    now = datetime.now(timezone.utc)
    with pytest.raises(ConfigError, match="write it in ASCII"):
        new_leaf(new_authority(now), SecretKey(bytes(range(32))), ["bücher"], now)


def test_another_key_or_address_needs_another_certificate(tmp_path: Path) -> None:
    first = own(tmp_path)
    second = own(tmp_path, hosts=("192.0.2.8", "run.example"))
    assert second != first
    names = second.parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["thinwire-coordinator", "run.example"]
    assert own(tmp_path, key=SecretKey(), hosts=("192.0.2.8", "run.example")) != second


def test_the_authority_outlives_its_certificates_and_is_replaced_in_time(tmp_path: Path) -> None:
    certificates = OwnCertificates(tmp_path / "tls", KEY, (), NOW)
    first = certificates.authority
    for days in range(0, 18 * 365, 20):
        certificates.renew(NOW + days * DAY)
        leaf, authority = certificates.current.parsed, certificates.authority.parsed
        assert leaf.not_valid_after_utc <= authority.not_valid_after_utc
        leaf.verify_directly_issued_by(authority)
    assert certificates.authority == first
    assert certificates.renew(NOW + 20 * 365 * DAY) is not None
    assert certificates.authority != first
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == certificates.authority.chain


def given(folder: Path, now: datetime = NOW, key: bytes | None = None) -> GivenCertificates:
    leaf = new_leaf(new_authority(NOW), KEY, [], NOW)
    (folder / "chain.pem").write_bytes(leaf.chain)
    (folder / "key.pem").write_bytes(leaf.key if key is None else key)
    return GivenCertificates(folder / "chain.pem", folder / "key.pem", now)


def test_the_organizers_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    certificates = given(tmp_path)
    assert certificates.renew(NOW) is None
    other = new_leaf(new_authority(NOW), KEY, [], NOW)
    (tmp_path / "chain.pem").write_bytes(other.chain)  # certbot writes one file after the other
    with pytest.raises(ConfigError, match="does not belong to the certificate"):
        certificates.renew(NOW)
    assert certificates.current != other
    (tmp_path / "key.pem").write_bytes(other.key)
    assert certificates.renew(NOW) == "its files have changed"
    assert certificates.current == other


def test_what_is_wrong_with_the_organizers_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"chain\.pem and .*key\.pem: the certificate has expired on 2026-12-22"):
        given(tmp_path, NOW + 40 * DAY)
    with pytest.raises(ConfigError, match="the key is not a private key"):
        given(tmp_path, key=b"x")
    with pytest.raises(ConfigError, match="the key does not belong"):
        given(tmp_path, key=new_authority(NOW).key)
    (tmp_path / "chain.pem").write_bytes(b"x")
    with pytest.raises(ConfigError, match="the certificate is not PEM"):
        GivenCertificates(tmp_path / "chain.pem", tmp_path / "key.pem", NOW)
    with pytest.raises(ConfigError, match=r"none\.pem: cannot be read: No such file"):
        GivenCertificates(tmp_path / "none.pem", tmp_path / "key.pem", NOW)


def test_a_running_coordinator_renews_and_says_so_once_if_it_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certificates = OwnCertificates(tmp_path / "tls", KEY, (), NOW)
    rotation, seen = Rotation(certificates), list[Certificate]()
    rotation.watchers.append(seen.append)

    async def through_the_weeks() -> None:
        await rotation.look(NOW + DAY)
        assert not seen
        await rotation.look(NOW + 25 * DAY)
        assert seen == [certificates.current]
        (tmp_path / "tls").rename(tmp_path / "elsewhere")
        (tmp_path / "tls").write_text("a file")
        await rotation.look(NOW + 50 * DAY)
        await rotation.look(NOW + 50 * DAY)
        assert seen == [certificates.current]
        (tmp_path / "tls").unlink()
        await rotation.look(NOW + 50 * DAY)
        assert seen[1:] == [certificates.current]

    asyncio.run(through_the_weeks())
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    assert [found["renewed"] for found in fields if "renewed" in found] == [True, False, True]
