"""Opens https and http addresses of a contract, and connects only where `DataAddresses` allows.

A name is resolved once, each of its addresses is checked, and the connection goes to one that passed. A name that leads
elsewhere at the next look-up (DNS rebinding) therefore gains nothing. Every redirect is checked in the same way.

Through a proxy (`https_proxy`, `no_proxy`), the proxy resolves the name. The name's addresses are checked here first;
where this machine cannot resolve it, the proxy decides.
"""

from __future__ import annotations

import http.client
import socket
import urllib.error
import urllib.request
from email.message import Message
from ipaddress import ip_address
from typing import IO, Any

from thinwire_common.reach.hosts import own_address
from thinwire_node.data_addresses import DataAddresses
from thinwire_node.limits.throttle import Throttle
from thinwire_proto.errors import RemoteError

REDIRECTS_MAX = 4


class AddressRefused(RemoteError):
    """The volunteer does not allow a connection to this address. The text says why."""


def opener(allowed: DataAddresses, throttle: Throttle | None = None) -> urllib.request.OpenerDirector:
    """An opener for http and https alone. `build_opener` would read file: and ftp: too. What it opens raises
    AddressRefused, or URLError with an AddressRefused as its reason. throttle: paces it, if limited."""
    found = urllib.request.OpenerDirector()
    proxies = {scheme: address for scheme, address in urllib.request.getproxies().items() if scheme == "https"}
    for handler in (
        urllib.request.ProxyHandler(proxies),
        _Http(allowed, throttle),
        _Https(allowed, throttle),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(allowed),
    ):
        found.add_handler(handler)
    return found


def checked_addresses(host: str, port: int, scheme: str, allowed: DataAddresses) -> list[tuple[Any, ...]]:
    """The addresses of a host that may be connected to, as `getaddrinfo` returns them.

    Raises AddressRefused if there is none, and OSError if the name cannot be resolved."""
    found, reasons = [], []
    for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        address = ip_address(str(entry[4][0]).partition("%")[0])
        reason = allowed.refusal(address, scheme, own_address(entry[0], entry[4]))
        if reason:
            reasons.append(reason)
        else:
            found.append(entry)
    if not found:
        raise AddressRefused("; ".join(dict.fromkeys(reasons)) or f"{host} has no address")
    return found


def _connect(entries: list[tuple[Any, ...]], timeout: float | None, throttle: Throttle | None) -> socket.socket:
    """A connection to the first address that answers. entries: as `getaddrinfo` returns them. Raises OSError."""
    failed: OSError | None = None
    for family, kind, protocol, _, target in entries:
        is_paced = throttle is not None and throttle.is_needed
        connection = throttle.make_socket(family) if throttle and is_paced else socket.socket(family, kind, protocol)
        try:
            connection.settimeout(timeout)
            connection.connect(target)
            return throttle.through(connection) if throttle and is_paced else connection
        except OSError as error:
            connection.close()
            failed = error
    assert failed is not None
    raise failed


class _HttpConnection(http.client.HTTPConnection):
    allowed: DataAddresses
    throttle: Throttle | None
    scheme = "http"

    def connect(self) -> None:
        entries = checked_addresses(self.host, self.port, self.scheme, self.allowed)
        self.sock = _connect(entries, self.timeout, self.throttle)


class _HttpsConnection(http.client.HTTPSConnection):
    allowed: DataAddresses
    throttle: Throttle | None
    scheme = "https"

    def connect(self) -> None:
        through_proxy: tuple[str, int] | None = self._tunnel_host and (self._tunnel_host, self._tunnel_port)  # type: ignore[attr-defined]
        if through_proxy is None:
            self._create_connection = self._guarded  # HTTPConnection.connect calls it, and TLS checks the name after it
        else:
            self._check_behind_proxy(*through_proxy)
            self._create_connection = self._to_proxy
        super().connect()

    def _guarded(self, address: tuple[str, int], timeout: float | None, *ignored: object) -> socket.socket:
        return _connect(checked_addresses(*address, self.scheme, self.allowed), timeout, self.throttle)

    def _to_proxy(self, address: tuple[str, int], timeout: float | None, *ignored: object) -> socket.socket:
        return _connect(socket.getaddrinfo(*address, type=socket.SOCK_STREAM), timeout, self.throttle)

    def _check_behind_proxy(self, host: str, port: int) -> None:
        try:
            checked_addresses(host, port, self.scheme, self.allowed)
        except socket.gaierror:
            return  # only the proxy knows this name


class _Http(urllib.request.HTTPHandler):
    def __init__(self, allowed: DataAddresses, throttle: Throttle | None) -> None:
        super().__init__()
        self._connection: Any = type("_Connection", (_HttpConnection,), {"allowed": allowed, "throttle": throttle})

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, allowed: DataAddresses, throttle: Throttle | None) -> None:
        super().__init__()
        self._connection: Any = type("_Connection", (_HttpsConnection,), {"allowed": allowed, "throttle": throttle})

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows few redirects, none from https to another scheme, and none to a scheme that is not allowed."""

    max_redirections = max_repeats = REDIRECTS_MAX

    def __init__(self, allowed: DataAddresses) -> None:
        self._allowed = allowed

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        schemes = ("https",) if req.full_url.startswith("https://") else ("https", "http")
        scheme = newurl.partition("://")[0].lower()
        if scheme not in schemes or self._allowed.scheme_refusal(scheme):
            raise urllib.error.HTTPError(req.full_url, code, f"it leads to {newurl:.80}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
