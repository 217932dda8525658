"""From an invite to a gRPC channel that trusts only the coordinator which the invite names."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import grpc

from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.preflight import Way, find_way
from thinwire_node.exchange.port import LinkLost
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.invite import Invite

Options = tuple[tuple[str, str | int], ...]
NO_PROXY: Options = (("grpc.enable_http_proxy", 0),)
"""Without it, gRPC reads `http_proxy` too."""


@dataclass(frozen=True)
class Dialled:
    """An open channel. port: of the TCP connection's other end, which may be a proxy's."""

    channel: grpc.aio.Channel
    port: int


async def dial(address: str, invite: Invite | None, options: Options) -> Dialled:
    """Open a channel to a coordinator.

    address: HOST:PORT, of this machine, if there is no invite; the channel then speaks plain text. Raises LinkLost if
    the coordinator cannot be reached, or if somebody else answers; ConfigError if trying again would be in vain."""
    if invite is None:
        host, port = split(address)
        if not is_loopback(host):
            raise ConfigError(
                f"{address} is another machine: to join it, start the node with an invite, which its organizer prints "
                "with `thinwire-coordinator invite`; HOST:PORT alone is for a coordinator on this machine"
            )
        return Dialled(grpc.aio.insecure_channel(address, options=[*options, *NO_PROXY]), port)
    host, port = split(invite.address)
    try:
        way = await find_way(host, port, invite.fingerprint, public_tls=invite.public_tls)
    except Unreachable as error:
        raise LinkLost(str(error)) from None
    credentials = grpc.ssl_channel_credentials(way.roots)
    target, more = _target(way, invite)
    return Dialled(grpc.aio.secure_channel(target, credentials, options=[*options, *more]), way.peer[1])


def split(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine for sure, without asking a name server."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _target(way: Way, invite: Invite) -> tuple[str, Options]:
    """What gRPC connects to, and the options that go with it."""
    expected: Options = (("grpc.ssl_target_name_override", way.name),)
    if invite.public_tls:
        expected += (("grpc.default_authority", invite.address),)  # a proxy in front may serve many hosts
    if way.proxy is not None:
        return f"dns:///{invite.address}", (*expected, ("grpc.http_proxy", way.proxy.url))
    host, port = way.peer
    target = f"ipv6:[{host.replace('%', '%25')}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
    return target, (*expected, *NO_PROXY)
