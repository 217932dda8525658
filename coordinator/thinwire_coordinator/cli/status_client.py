"""Requests the status of a swarm from its coordinator."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.grpc_target import NO_PROXY, Options, grpc_target
from thinwire_common.reach.hosts import is_loopback, split_address
from thinwire_common.reach.preflight import Way, find_way
from thinwire_coordinator.access.organizer_proof import organizer_proof
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError, RemoteError
from thinwire_proto.identity.invite import INVITE_LENGTH_MAX, PREFIX, Invite, parse_invite
from thinwire_proto.identity.keys import KEY_FILE, open_key
from thinwire_proto.wire.metadata import ORGANIZER
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX
from thinwire_proto.wire.service_pb2 import StatusReply, StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

FILE_MARK = "@"


def ask_status(coordinator: str, state_dir: Path | None = None) -> StatusReply:
    """The status of a swarm. coordinator: see `open_channel`. state_dir: see `as_organizer`. Raises RemoteError if no
    coordinator answers."""
    metadata = as_organizer(state_dir) if state_dir is not None else ()
    with open_channel(coordinator) as channel:
        try:
            return SwarmStub(channel).Status(StatusRequest(), timeout=limits.STATUS_ANSWER_S, metadata=metadata)
        except grpc.RpcError as error:
            raise RemoteError(f"{_shown(coordinator)}: {_in_words(error)}") from None


def as_organizer(state_dir: Path) -> tuple[tuple[str, str], ...]:
    """Metadata that prove to a coordinator that its organizer asks. state_dir: its own. Raises ConfigError."""
    path = state_dir / KEY_FILE
    if not path.exists():
        raise ConfigError(f"{state_dir}: no coordinator has started here; give its state directory, or leave it out")
    return ((ORGANIZER, organizer_proof(open_key(path), time.time())),)


def open_channel(coordinator: str) -> grpc.Channel:
    """A channel to a coordinator. coordinator: an invite, @FILE with one, or HOST:PORT on this machine.

    The identity of a coordinator on this machine is not checked. Raises ConfigError, or RemoteError if it cannot be
    reached.
    """
    options: Options = (("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),)
    invite = _invite(coordinator)
    address = coordinator if invite is None else invite.address
    host, port = split_address(address)
    if invite is None and not is_loopback(host):
        raise ConfigError(f"{address} is another machine: give an invite, which says whom to trust, or @FILE with one")
    public_tls = invite is not None and invite.public_tls
    try:
        with ThreadPoolExecutor(1) as thread:  # an event loop may run in this one
            way: Way = thread.submit(
                asyncio.run, find_way(host, port, invite.fingerprint if invite else None, public_tls=public_tls)
            ).result()
    except Unreachable as error:
        if invite is not None:
            raise RemoteError(f"{address}: {error}") from None
        return grpc.insecure_channel(address, options=(*options, *NO_PROXY))  # --insecure, or nobody
    target, more = grpc_target(way, address, public_tls=public_tls)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(way.roots), options=(*options, *more))


def _invite(given: str) -> Invite | None:
    if given.startswith(FILE_MARK):
        try:
            with Path(given.removeprefix(FILE_MARK)).open(encoding="utf-8") as file:
                return parse_invite(file.read(INVITE_LENGTH_MAX))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{given}: cannot read the invite: {error}") from None
    return parse_invite(given) if given.startswith(PREFIX) else None


def _shown(coordinator: str) -> str:
    """The coordinator's name in an error; an invite is a secret."""
    return "the coordinator" if coordinator.startswith(PREFIX) else coordinator


def _in_words(error: grpc.RpcError) -> str:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "the server at this address is not a thinwire coordinator"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {limits.STATUS_ANSWER_S:.0f} s"
    return "no coordinator answers; a coordinator that still replays its ledger does not answer yet"
