"""One short TLS connection that finds the way to a server, and what to check it by afterwards.

gRPC can neither show the certificate of a server nor say why a connection fails. So this module connects first, reads
the certificate, and says in words what is wrong. What it returns is all that gRPC then needs: the address that
answered, the roots to trust, and the name to expect.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from thinwire_common.reach.errors import Unreachable, WrongCertificate
from thinwire_common.reach.happy_eyeballs import Refusal, connect_first
from thinwire_common.reach.proxy import Proxy, pass_through, proxy_for
from thinwire_common.within import Within
from thinwire_proto import limits
from thinwire_proto.identity.authority import COORDINATOR, Party, Untrusted, check_certificate

ALPN = "h2"
"""gRPC speaks HTTP/2, and says so in the TLS handshake."""


@dataclass(frozen=True)
class Way:
    """A way that worked.

    peer: IP address and port of the TCP connection, which are the proxy's if there is one. roots: PEM, the authorities
    to trust; None: those that gRPC brings. name: to expect in the certificate."""

    peer: tuple[str, int]
    proxy: Proxy | None
    name: str
    roots: bytes | None = field(repr=False)


async def find_way(
    host: str,
    port: int,
    fingerprint: bytes | None,
    *,
    public_tls: bool,
    party: Party = COORDINATOR,
    refusal: Refusal | None = None,
) -> Way:
    """Connect to a server and check who answers, within DIAL_S. Raises Unreachable or ConfigError.

    fingerprint: of the server's key; None: any coordinator will do, because it is on this machine. public_tls: the
    certificate there is one that browsers accept, and is checked by the host's name; whoever calls must check the
    coordinator's key in what follows. party: the kind of server. refusal: why an address must not be connected to."""
    proxy = proxy_for(host)
    name = host if public_tls else party.server_name
    context = ssl.create_default_context() if public_tls else _unchecked()
    context.set_alpn_protocols([ALPN])
    try:
        async with Within(limits.DIAL_S):
            peer, certificate = await _handshake(host, port, proxy, context, name, refusal)
    except (TimeoutError, asyncio.TimeoutError):
        raise Unreachable(
            f"no answer within {limits.DIAL_S:.0f} s; a firewall or router may drop the connection, or the "
            f"{party.noun} is off"
        ) from None
    if public_tls:
        return Way(peer, proxy, name, _system_roots(context))
    try:
        return Way(peer, proxy, name, check_certificate(certificate, fingerprint, datetime.now(timezone.utc), party))
    except Untrusted as error:
        raise WrongCertificate(str(error)) from None


async def _handshake(
    host: str, port: int, proxy: Proxy | None, context: ssl.SSLContext, name: str, refusal: Refusal | None
) -> tuple[tuple[str, int], bytes]:
    """Returns the IP address and port, and the server's certificate (DER)."""
    connection = await _connected(host, port, proxy, refusal)
    try:
        peer: tuple[str, int] = connection.getpeername()[:2]
        if proxy is not None:
            await pass_through(proxy, connection, f"{f'[{host}]' if ':' in host else host}:{port}")
    except OSError:
        connection.close()
        raise Unreachable("the connection was cut at once; a firewall may do so") from None
    except BaseException:
        connection.close()
        raise
    try:  # from here on, the transport owns the socket
        _, writer = await asyncio.open_connection(sock=connection, ssl=context, server_hostname=name)
    except ssl.SSLError as error:
        raise Unreachable(_in_words(error, name)) from None
    except OSError:
        raise Unreachable(
            "the connection was cut during the TLS handshake: something else than a coordinator listens there, or "
            "somebody in between does not let TLS pass"
        ) from None
    try:
        session: Any = writer.get_extra_info("ssl_object")
        if session.selected_alpn_protocol() != ALPN:
            raise Unreachable("what answers there speaks TLS but not gRPC; a proxy in front must pass on HTTP/2")
        certificate: bytes = session.getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return peer, certificate


async def _connected(host: str, port: int, proxy: Proxy | None, refusal: Refusal | None) -> socket.socket:
    if proxy is None:
        return await connect_first(host, port, refusal)
    if refusal is not None:
        raise Unreachable("this machine is behind a proxy, which would resolve the name")
    try:
        return await connect_first(proxy.host, proxy.port, listener="a proxy")
    except Unreachable as error:
        raise Unreachable(f"the proxy of https_proxy: {error}") from None


def _unchecked() -> ssl.SSLContext:
    """A context that takes any certificate. What it reads is checked afterwards, by `check_certificate`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _system_roots(context: ssl.SSLContext) -> bytes | None:
    """The authorities that this system trusts, PEM; None if they are in a form that only OpenSSL reads."""
    found = context.get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode() or None


def _in_words(error: ssl.SSLError, name: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate there is not valid for {name}: {error.verify_message}; tell the organizer"
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"):
        return "what answers there speaks plain text, not TLS: another service, or a coordinator with --insecure"
    return f"no TLS connection: {(error.reason or 'UNKNOWN').lower().replace('_', ' ')}"
