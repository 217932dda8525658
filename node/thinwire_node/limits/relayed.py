"""Leads a gRPC channel through the relay of the owner's limits."""

from __future__ import annotations

from contextlib import AsyncExitStack

from thinwire_common.reach.grpc_target import Options
from thinwire_common.reach.preflight import Way
from thinwire_node.limits.throttle import PREFLIGHT_BYTES, Throttle


async def relayed(
    throttle: Throttle | None, way: Way, target: str, options: Options
) -> tuple[AsyncExitStack, str, Options]:
    """The target and the options of a channel, and what to close after it. They are the given ones without a limit.

    way: the preflight's. Behind a proxy, gRPC believes that the relay is the proxy."""
    relay = AsyncExitStack()
    if throttle is None or not throttle.is_needed:
        return relay, target, options
    throttle.charge(PREFLIGHT_BYTES, PREFLIGHT_BYTES)
    if way.proxy is None:
        return relay, await relay.enter_async_context(throttle.door(*way.peer)), options
    door = await relay.enter_async_context(throttle.door(*way.peer, by_port=True))
    scheme, _, rest = way.proxy.url.partition("://")
    user, at, _ = rest.rpartition("@")
    url = f"{scheme}://{user}{at}{door}"
    return relay, target, tuple((name, url if name == "grpc.http_proxy" else value) for name, value in options)
