"""Certificates on disk: those that the coordinator issues to itself, and those that the organizer gives it.

STATE/tls/authority.pem   certificate and key of the authority; mode 0600
STATE/tls/server.pem      certificate and key of the server, renewed by the running process; mode 0600
STATE/tls/ca.pem          the authority's certificate alone, for browsers and Prometheus
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from thinwire_common.files import rename_synced, replace_synced
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.certificates import (
    Certificate,
    check_not_expired,
    new_authority,
    new_leaf,
    parse_certificate,
    why_renew_authority,
    why_renew_leaf,
)
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.identity.private_files import others_can_read

FOLDER = "tls"
CA_FILE = "ca.pem"
PEM_BYTES_MAX = 1 << 20
_KEY_BEGINS = b"-----BEGIN PRIVATE KEY-----"


class Certificates(Protocol):
    """A source of the certificate that the coordinator serves with."""

    @property
    def current(self) -> Certificate: ...

    def renew(self, now: datetime) -> str | None:
        """Replace `current` if it is due. Return the reason, or None. Raises ConfigError; `current` then stays."""


class OwnCertificates:
    """Certificates that the coordinator issues to itself.

    folder: STATE/tls. hosts: see `new_leaf`. ca_file: a copy of ca.pem outside of the state directory. Raises
    ConfigError if the files cannot be written."""

    def __init__(
        self, folder: Path, identity: SecretKey, hosts: Sequence[str], now: datetime, ca_file: Path | None = None
    ) -> None:
        self._folder = folder
        self._ca_files = [folder / CA_FILE, *([ca_file] if ca_file is not None else [])]
        self._identity = identity
        self._hosts = tuple(dict.fromkeys(hosts))
        self._authority = _read(folder / "authority.pem")
        self._leaf = _read(folder / "server.pem")
        self.renew(now)

    @property
    def current(self) -> Certificate:
        assert self._leaf is not None
        return self._leaf

    def renew(self, now: datetime) -> str | None:
        reason = "there was none" if self._authority is None else why_renew_authority(self._authority, now)
        if reason is not None:
            self._authority = self._keep("authority.pem", new_authority(now))
        assert self._authority is not None
        if self._leaf is None or reason is not None:
            reason = reason or "there was none"
        else:
            reason = why_renew_leaf(self._leaf, self._authority, self._identity, self._hosts, now)
        if reason is not None:
            self._leaf = self._keep("server.pem", new_leaf(self._authority, self._identity, self._hosts, now))
        for path in self._ca_files:
            publish_authority(path, self._authority)
        return reason

    @property
    def authority(self) -> Certificate:
        assert self._authority is not None
        return self._authority

    def _keep(self, name: str, certificate: Certificate) -> Certificate:
        path = self._folder / name
        temporary = path.with_name(f"{name}.part")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)  # its mode may be another
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(certificate.chain + certificate.key)
            rename_synced(temporary, path)
        except OSError as error:
            raise _unusable(path, error) from None
        return certificate


class GivenCertificates:
    """The organizer's own certificate, from two files, which are read again when they change.

    Raises ConfigError if they cannot be used, or if the certificate has expired."""

    def __init__(self, chain: Path, key: Path, now: datetime) -> None:
        self._paths = (chain, key)
        self._certificate = self._read()
        self._check_time(now)

    @property
    def current(self) -> Certificate:
        return self._certificate

    def renew(self, now: datetime) -> str | None:
        found, before = self._read(), self._certificate
        if found != before:
            self._certificate = found
        self._check_time(now)
        return "its files have changed" if found != before else None

    def _read(self) -> Certificate:
        try:
            chain, key = (_bounded(path) for path in self._paths)
            return parse_certificate(chain, key)
        except OSError as error:
            raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None
        except ConfigError as error:
            raise self._wrong(error) from None

    def _check_time(self, now: datetime) -> None:
        try:
            check_not_expired(self._certificate, now)
        except ConfigError as error:
            raise self._wrong(error) from None

    def _wrong(self, error: ConfigError) -> ConfigError:
        return ConfigError(f"{self._paths[0]} and {self._paths[1]}: {error}")


def publish_authority(path: Path, authority: Certificate) -> None:
    """Write the authority's certificate, without its key, into a file that everybody may read.

    Raises ConfigError."""
    try:
        if not path.exists() or path.read_bytes() != authority.chain:
            replace_synced(path, authority.chain)
    except OSError as error:
        raise _unusable(path, error) from None


def _read(path: Path) -> Certificate | None:
    """A certificate that was kept; None if it is missing or damaged, or if others can read its key."""
    try:
        if others_can_read(path):
            return None
        chain, mark, key = _bounded(path).partition(_KEY_BEGINS)
        return parse_certificate(chain, mark + key)
    except (FileNotFoundError, ConfigError):
        return None
    except OSError as error:
        raise _unusable(path, error) from None


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(PEM_BYTES_MAX)


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot keep the TLS certificate: {error.strerror}; it must be writable by this user")
