"""Reads the session's secret and the caller's address from a gRPC call, and refuses it in gRPC's words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
from grpc.aio import ServicerContext as Context

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.addresses import HEADER, network_of
from thinwire_coordinator.hall.access.door import MUST_WAIT, Denied, DoorReason
from thinwire_coordinator.hall.access.transport import Transport
from thinwire_proto.wire.metadata import ORGANIZER, REASON, SESSION

log = logging.getLogger("thinwire.coordinator")

UNKNOWN = "unknown"
REFUSAL_LENGTH_MAX = 2000
"""gRPC sends an error's text in a header, and headers are limited to 8 kB."""


def session_of(context: Context[Any, Any]) -> str:
    """The session's secret; empty if the call has none."""
    return _metadata(context, SESSION)


def organizer_of(context: Context[Any, Any]) -> str:
    """The organizer's proof; empty if the call has none."""
    return _metadata(context, ORGANIZER)


def _metadata(context: Context[Any, Any], wanted: str) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == wanted and isinstance(value, str):
            return value
    return ""


def host_of(peer: str) -> str:
    """The host in gRPC's name of a peer: `ipv4:192.0.2.1:5000`, `ipv6:%5B2001:db8::1%5D:5000`, `unix:…`."""
    _, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]")


def network_of_peer(peer: str) -> str:
    """The network of a peer, as `network_of` names it. Peers without an address, such as those of a Unix socket, share
    one name."""
    return network_of(host_of(peer)) or UNKNOWN


def peer_of(context: Context[Any, Any], transport: Transport | None = None) -> str:
    """The caller, named as gRPC names a peer: behind a proxy that says whom it passes on, the proxy's client."""
    peer = context.peer()
    forwarded = [str(value) for key, value in context.invocation_metadata() or () if key == HEADER]
    host = host_of(peer)
    client = host if transport is None else transport.client_of(host, forwarded)
    if client == host:
        return peer
    return f"ipv6:[{client}]:0" if ":" in client else f"ipv4:{client}:0"


NO_SESSION = "no such session: join again"
SESSION_REPLACED = "this session is over: another process has joined with this node's key"


class CallRefused(Exception):
    """A handler refuses its call. The guard answers for it, after a pause."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.text)
        self.denied = denied


async def deny(context: Context[Any, Any], denied: Denied) -> NoReturn:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED if denied.reason in MUST_WAIT else grpc.StatusCode.PERMISSION_DENIED
    await context.abort(code, denied.text[:REFUSAL_LENGTH_MAX], ((REASON, denied.reason.value),))


async def refuse(context: Context[Any, Any], text: str) -> NoReturn:
    """Refuse a call that would fail again."""
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text[:REFUSAL_LENGTH_MAX])


LOG_EVERY_S = 10.0


class RefusalLog:
    """Logs the first refusal of each reason, and then one line for each reason every LOG_EVERY_S at most.

    Strangers can cause any number of refusals at the door, so their lines are bounded in number."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._silent_until: dict[DoorReason, float] = {}
        self._times: dict[DoorReason, int] = {}

    def note(self, node_id: str, denied: Denied) -> None:
        reason, now = denied.reason, self._now()
        self._times[reason] = times = self._times.get(reason, 0) + 1
        if now < self._silent_until.get(reason, now):
            return
        self._times[reason], self._silent_until[reason] = 0, now + LOG_EVERY_S
        more = f" ({times} refusals since the last line)" if times > 1 else ""
        text = f"refused the node {node_id}: {denied.reason.value}: {denied.text}{more}"
        tell(
            log,
            logging.WARNING,
            "coordinator.join_refused",
            text,
            node_id=node_id,
            refusal=reason.value,
            reason=denied.text,
            times=times,
        )
