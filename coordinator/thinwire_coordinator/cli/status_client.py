"""Requests the status of a swarm from its coordinator."""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from thinwire_common.reach.errors import Unreachable, WrongCertificate
from thinwire_common.reach.grpc_target import NO_PROXY, Options, grpc_target
from thinwire_common.reach.hosts import is_loopback, split_address
from thinwire_common.reach.preflight import Way, find_way
from thinwire_common.ready_file import READY_FILE, read_ready
from thinwire_coordinator.hall.access.addresses import is_any
from thinwire_coordinator.hall.access.door import NONCE_BYTES
from thinwire_coordinator.hall.access.organizer import organizer_proof
from thinwire_coordinator.hall.ledger.identity import open_existing_identity
from thinwire_coordinator.hall.standby.standing import read_standing, rows_in
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError, RemoteError
from thinwire_proto.identity import statements
from thinwire_proto.identity.invite import FILE_MARK, PREFIX, Invite, bare, parse_given_invite
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire.metadata import ORGANIZER
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX
from thinwire_proto.wire.service_pb2 import HelloRequest, StatusReply, StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub


def ask_status(coordinator: str) -> StatusReply:
    """What everybody may know of a swarm. coordinator: see `open_channel`. Raises RemoteError if none answers."""
    with open_channel(coordinator) as channel:
        try:
            return SwarmStub(channel).Status(StatusRequest(), timeout=limits.STATUS_ANSWER_S)
        except grpc.RpcError as error:
            raise RemoteError(f"{_shown(coordinator)}: {_in_words(error)}") from None


def ask_status_of(state_dir: Path, coordinator: str | None = None) -> StatusReply:
    """All that the organizer may know of the swarm whose coordinator runs on a state directory.

    coordinator: see `open_channel`; None takes the address in the ready file. Raises ConfigError, or RemoteError if
    another one answers, or none.
    """
    key, address = open_existing_identity(state_dir), coordinator or _ready_address(state_dir)
    with open_channel(address, here=coordinator is None) as channel:
        stub = SwarmStub(channel)
        try:
            if not _holds(stub, key.public):
                text = f"the coordinator that answers is not the one of {state_dir}, which is not running there"
                raise RemoteError(f"{_shown(address)}: {text}")
            metadata = _proof(key)
            return stub.Status(StatusRequest(), timeout=limits.STATUS_ANSWER_S, metadata=metadata)
        except grpc.RpcError as error:
            raise RemoteError(f"{_shown(address)}: {_in_words(error)}") from None


def _holds(stub: SwarmStub, key: PublicKey) -> bool:
    """Whether the coordinator that answers has the secret of this key."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    said = stub.Hello(HelloRequest(nonce=nonce), timeout=limits.STATUS_ANSWER_S)
    return key.verifies(said.signature, statements.hello(nonce, said.challenge))


def _ready_address(state_dir: Path) -> str:
    """HOST:PORT at which this machine reaches the coordinator that runs on a state directory. Raises RemoteError."""
    ready = read_ready(state_dir / READY_FILE)
    if ready is None and (standing := read_standing(state_dir)).waits:
        text = f"it follows the coordinator at {standing.follows}, which has the status"
        raise RemoteError(f"{state_dir} is a standby with {rows_in(state_dir)} steps, and answers nobody: {text}")
    if ready is None:
        raise RemoteError(
            f"{state_dir}: no coordinator runs here, or it still replays its ledger: there is no {READY_FILE}"
        )
    host, port = split_address(ready["address"])
    if is_any(host):
        host = "::1" if ":" in host else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def as_organizer(state_dir: Path) -> tuple[tuple[str, str], ...]:
    """Metadata that prove to a coordinator that its organizer asks. state_dir: its own. Raises ConfigError."""
    return _proof(open_existing_identity(state_dir))


def _proof(key: SecretKey) -> tuple[tuple[str, str], ...]:
    return ((ORGANIZER, organizer_proof(key, time.time())),)


def open_channel(coordinator: str, *, here: bool = False) -> grpc.Channel:
    """A channel to a coordinator. coordinator: an invite, @FILE with one, or HOST:PORT on this machine.

    here: HOST is this machine's although it may not look so. The identity of a coordinator on this machine is not
    checked. Raises ConfigError, or RemoteError if it cannot be reached.
    """
    options: Options = (("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),)
    invite = _invite(coordinator)
    address = coordinator if invite is None else invite.address
    host, port = split_address(address)
    if invite is None and not is_loopback(host) and not here:
        raise ConfigError(f"{address} is another machine: give an invite, which says whom to trust, or @FILE with one")
    public_tls = invite is not None and invite.public_tls
    try:
        with ThreadPoolExecutor(1) as thread:  # an event loop may run in this one
            way: Way = thread.submit(
                asyncio.run, find_way(host, port, invite.fingerprint if invite else None, public_tls=public_tls)
            ).result()
    except WrongCertificate as error:
        hint = "" if invite else "; if the coordinator has --tls-certificate, give an invite, or @FILE with one"
        raise RemoteError(f"{address}: {error}{hint}") from None
    except Unreachable as error:
        if invite is not None:
            raise RemoteError(f"{address}: {error}") from None
        return grpc.insecure_channel(address, options=(*options, *NO_PROXY))  # --insecure, or nobody
    target, more = grpc_target(way, address, public_tls=public_tls)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(way.roots), options=(*options, *more))


def _invite(given: str) -> Invite | None:
    """The invite, if it is one or @FILE. Raises ConfigError."""
    is_one = given.startswith(FILE_MARK) or bare(given).startswith(PREFIX)
    return parse_given_invite(given) if is_one else None


def _shown(coordinator: str) -> str:
    """The coordinator's name in an error; an invite is a secret."""
    return "the coordinator" if bare(coordinator).startswith(PREFIX) else coordinator


def _in_words(error: grpc.RpcError) -> str:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "the server at this address is not a thinwire coordinator"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {limits.STATUS_ANSWER_S:.0f} s"
    return "no coordinator answers; a coordinator that still replays its ledger does not answer yet"
