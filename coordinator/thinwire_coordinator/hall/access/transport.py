"""The transport of nodes and browsers: TLS with renewed certificates, or plain text from this machine or a proxy.

STATE/tls/authority.pem   certificate and key of the authority; mode 0600
STATE/tls/server.pem      certificate and key of the server, renewed by the running process; mode 0600
STATE/tls/ca.pem          the authority's certificate alone, for browsers and Prometheus
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from thinwire_common.files import replace_synced
from thinwire_common.logs import tell
from thinwire_common.reach.hosts import is_loopback, split_address
from thinwire_common.tls import ServerTls
from thinwire_coordinator.hall.access.addresses import client_of, is_any, parsed
from thinwire_proto.errors import ConfigError, UsageError
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

log = logging.getLogger("thinwire.coordinator")

FOLDER = "tls"
CA_FILE = "ca.pem"
PEM_BYTES_MAX = 1 << 20
_KEY_BEGINS = b"-----BEGIN PRIVATE KEY-----"


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
        """Replace `current` if it is due. Return the reason, or None. Raises ConfigError; `current` then stays."""
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
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_synced(path, certificate.chain + certificate.key, private=True)
        except OSError as error:
            raise _unusable(path, error) from None
        return certificate


class GivenCertificates:
    """The organizer's own certificate, from two files, which are read again when they change.

    Raises ConfigError if they cannot be used, or if the certificate has expired."""

    def __init__(self, chain: Path, key: Path, now: datetime) -> None:
        self._paths = (chain, key)
        self.current = self._read()
        self._check_time(self.current, now)

    def renew(self, now: datetime) -> str | None:
        found, before = self._read(), self.current
        self._check_time(found, now)
        self.current = found
        return "its files have changed" if found != before else None

    def _read(self) -> Certificate:
        try:
            chain, key = (_bounded(path) for path in self._paths)
            found = parse_certificate(chain, key)
            ServerTls(chain, key)  # OpenSSL refuses more, such as keys that are too short
            return found
        except ssl.SSLError as error:
            raise self._wrong(ConfigError(f"OpenSSL refuses it: {error.reason or error}")) from None
        except OSError as error:
            raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None
        except ConfigError as error:
            raise self._wrong(error) from None

    def _check_time(self, certificate: Certificate, now: datetime) -> None:
        try:
            check_not_expired(certificate, now)
        except ConfigError as error:
            raise self._wrong(error) from None

    def _wrong(self, error: ConfigError) -> ConfigError:
        return ConfigError(f"{self._paths[0]} and {self._paths[1]}: {error}")


Certificates: TypeAlias = OwnCertificates | GivenCertificates


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


LOOK_EVERY_S = 60.0


class Rotation:
    """Looks every LOOK_EVERY_S whether the certificate is due. watchers: receive each new certificate."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._problem = ""
        self.watchers: list[Callable[[Certificate], None]] = []

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look(utc_now())

    async def look(self, now: datetime) -> None:
        """Renew the certificate if it is due. A failure is logged once; the old certificate stays in use."""
        before = self._certificates.current
        try:
            reason = await asyncio.to_thread(self._certificates.renew, now)
            problem = ""
        except ConfigError as error:
            reason, problem = None, str(error)
        if problem and problem != self._problem:
            text = f"the TLS certificate cannot be renewed: {problem}"
            tell(log, logging.WARNING, "coordinator.certificate", text, renewed=False, ends=None, reason=problem)
        self._problem = problem
        if self._certificates.current != before:
            ends = self._certificates.current.parsed.not_valid_after_utc
            text = f"new TLS certificate, valid until {ends:%Y-%m-%d}: {reason}"
            until = ends.isoformat()
            tell(log, logging.INFO, "coordinator.certificate", text, renewed=True, ends=until, reason=reason)
            for watcher in self.watchers:
                watcher(self._certificates.current)


def utc_now() -> datetime:
    """The time of day. Only certificates need it."""
    return datetime.now(timezone.utc)


Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class TlsSettings:
    """certificate, key: the organizer's own files. proxy: the network of a proxy that terminates TLS; the ports then
    speak plain text, to it alone. proxy_forwards: it adds its client's address to X-Forwarded-For. insecure: plain text
    on this machine, without invites. ca_file: also write the authority's certificate there."""

    certificate: Path | None = None
    key: Path | None = None
    proxy: Network | None = None
    insecure: bool = False
    ca_file: Path | None = None
    proxy_forwards: bool = False

    def check(self, listen: str, http: str | None, *, writes_invite: bool = False) -> None:
        """Raise UsageError if the settings contradict each other. listen, http: HOST:PORT."""
        if self.insecure and writes_invite:
            raise UsageError(
                "--insecure admits nodes without an invite: leave out --invite-file, and start them with HOST:PORT"
            )
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--tls-certificate and --tls-key belong together: give both")
        if self.insecure and (self.certificate is not None or self.proxy is not None):
            raise UsageError("--insecure means plain text: leave out --tls-certificate and --tls-proxy")
        if self.certificate is not None and self.proxy is not None:
            raise UsageError("with --tls-proxy the proxy has the certificate: leave out --tls-certificate")
        if self.proxy_forwards and self.proxy is None:
            raise UsageError("--tls-proxy-forwards is about a proxy: name its network with --tls-proxy")
        for option, address in (("--listen", listen), ("--http", http)):
            if self.insecure and address is not None and not is_loopback(split_address(address)[0]):
                raise UsageError(
                    f"--insecure is for this machine only, and {option} {address} is open to others: leave --insecure "
                    f"out, or use {option} 127.0.0.1:{split_address(address)[1]}"
                )


class Transport:
    """The certificates of one coordinator process. certificates: None means plain text. Raises ConfigError."""

    def __init__(self, settings: TlsSettings, folder: Path, key: SecretKey, addresses: list[str | None]) -> None:
        """folder: the state directory. addresses: HOST:PORT at which browsers may look for the page."""
        self._settings = settings
        self.certificates: Certificates | None = None
        if settings.certificate is not None and settings.key is not None:
            self.certificates = GivenCertificates(settings.certificate, settings.key, utc_now())
        elif settings.proxy is None and not settings.insecure:
            named = [split_address(address)[0] for address in addresses if address is not None]
            hosts = [*LOCAL_HOSTS, *(host for host in named if not is_any(host))]
            self.certificates = OwnCertificates(folder / FOLDER, key, hosts, utc_now(), settings.ca_file)
        self.rotation = None if self.certificates is None else Rotation(self.certificates)

    @property
    def public_tls(self) -> bool:
        """Whether nodes check a certificate that the system trusts, instead of the coordinator's own."""
        return self._settings.certificate is not None or self._settings.proxy is not None

    @property
    def behind_proxy(self) -> bool:
        """Whether a proxy terminates TLS, and nobody else may connect."""
        return self._settings.proxy is not None

    def is_private(self, http: str) -> bool:
        """Whether the page at HOST:PORT is for this machine alone."""
        return is_loopback(split_address(http)[0]) and not self.behind_proxy

    @property
    def trusted_proxy(self) -> Network | None:
        """The network of the proxies whose X-Forwarded-For counts."""
        return self._settings.proxy if self._settings.proxy_forwards else None

    def client_of(self, host: str, forwarded: Sequence[str]) -> str:
        """The IP address of a client; see `addresses.client_of`."""
        if self.trusted_proxy is None:
            return host
        return client_of(host, forwarded, self._is_proxy)

    @property
    def invites_needed(self) -> bool:
        return not self._settings.insecure

    def page_certificate(self, http: str) -> Certificate | None:
        """The certificate for the page at HOST:PORT; None for plain HTTP."""
        if self.certificates is None or is_loopback(split_address(http)[0]):
            return None
        return self.certificates.current

    def may_connect(self, host: str) -> bool:
        """Whether a client with this IP address may use a port in plain text."""
        address = parsed(host)
        return address is not None and (address.is_loopback or self._is_proxy(host))

    def _is_proxy(self, host: str) -> bool:
        address, proxy = parsed(host), self._settings.proxy
        return address is not None and proxy is not None and address in proxy


def plain_transport() -> Transport:
    """Plain text without certificates, for tests and benchmarks that need no process."""
    return Transport(TlsSettings(insecure=True), Path(), SecretKey(), [])
