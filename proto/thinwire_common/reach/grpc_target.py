"""Says in gRPC's words what the preflight found. It is text and numbers, so this module needs no gRPC."""

from __future__ import annotations

from thinwire_common.reach.preflight import Way

Options = tuple[tuple[str, str | int], ...]
NO_PROXY: Options = (("grpc.enable_http_proxy", 0),)
"""Without it, gRPC reads `http_proxy` too."""


def grpc_target(way: Way, address: str, *, public_tls: bool) -> tuple[str, Options]:
    """The target that gRPC connects to, and the options that go with it. address: HOST:PORT, as the invite has it."""
    expected: Options = (("grpc.ssl_target_name_override", way.name),)
    if public_tls:
        expected += (("grpc.default_authority", address),)  # a proxy in front may serve many hosts
    if way.proxy is not None:
        return f"dns:///{address}", (*expected, ("grpc.http_proxy", way.proxy.url))
    host, port = way.peer
    target = f"ipv6:[{host.replace('%', '%25')}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
    return target, (*expected, *NO_PROXY)
