"""The transport of nodes and browsers: TLS with a certificate, or plain text from this machine or a proxy only."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from thinwire_common.reach.hosts import is_loopback, split_address
from thinwire_coordinator.hall.access.addresses import is_any
from thinwire_coordinator.hall.access.forwarded import client_of
from thinwire_coordinator.hall.access.rotation import Rotation, utc_now
from thinwire_coordinator.hall.access.tls_files import FOLDER, Certificates, GivenCertificates, OwnCertificates
from thinwire_proto.errors import UsageError
from thinwire_proto.identity.certificates import Certificate
from thinwire_proto.identity.keys import SecretKey

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
        """The IP address of a client; see `forwarded.client_of`."""
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
        address = _address(host)
        return address is not None and (address.is_loopback or self._is_proxy(host))

    def _is_proxy(self, host: str) -> bool:
        address, proxy = _address(host), self._settings.proxy
        return address is not None and proxy is not None and address in proxy


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def plain_transport() -> Transport:
    """Plain text without certificates, for tests and benchmarks that need no process."""
    return Transport(TlsSettings(insecure=True), Path(), SecretKey(), [])
