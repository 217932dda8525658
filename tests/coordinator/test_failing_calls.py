"""A call that fails inside the coordinator: the caller learns nothing of its disk, and the log has the reason."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from thinwire_common.logs import JsonFormatter
from thinwire_coordinator.hall.access.admission import AdmissionRules, Bounds
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.rpc.guard import FAILED, Guard
from thinwire_proto.errors import LocalError
from thinwire_proto.identity.keys import KEY_FILE, open_key
from thinwire_proto.limits import FAILURE_TOLD_AGAIN_S
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer, SwarmStub, add_SwarmServicer_to_server

SECRET_PATH = "/home/organizer/state/access.sqlite"


class Failing(SwarmServicer):
    async def Probe(self, request: pb.ProbeRequest, context: Any) -> pb.ProbeReply:
        raise LocalError(f"{SECRET_PATH}: cannot be read or written: disk I/O error")

    async def Attend(self, request: pb.AttendRequest, context: Any) -> AsyncIterator[pb.Announcement]:
        yield pb.Announcement(step=7)
        raise OverflowError(SECRET_PATH)

    async def Corpus(self, request: pb.CorpusRequest, context: Any) -> AsyncIterator[pb.FilePart]:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "said on purpose")
        yield pb.FilePart()

    async def AskReceipt(self, request: pb.ReceiptRequest, context: Any) -> pb.Receipt:
        raise TimeoutError(SECRET_PATH)  # as a network's disk does

    async def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveReply:
        raise grpc.aio.InternalError("execute_batch")  # as gRPC does where the peer is gone


async def test_a_failure_is_logged_and_counted_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Denied] = []
    now = 0.0
    guard = Guard(AdmissionRules(Bounds(nodes_max=1)), lambda secret: "a-node", lambda: now, told.append)
    server = grpc.aio.server(interceptors=[guard])
    add_SwarmServicer_to_server(Failing(), server)  # type: ignore[abstract]  # five calls are enough
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    metadata = ((SESSION, "s"),)
    with caplog.at_level(logging.ERROR):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = SwarmStub(channel)
            for name, request in (("Probe", pb.ProbeRequest()), ("Attend", pb.AttendRequest())):
                call = getattr(stub, name)(request, metadata=metadata)
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await (call if name == "Probe" else _all(call))
                assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INTERNAL, FAILED)
                with pytest.raises(grpc.aio.AioRpcError):  # in the same second: counted, and not logged again
                    await stub.Probe(pb.ProbeRequest(), metadata=metadata)
                now += FAILURE_TOLD_AGAIN_S
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.AskReceipt(pb.ReceiptRequest(), metadata=metadata)
            assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INTERNAL, FAILED)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await _all(stub.Corpus(pb.CorpusRequest(), metadata=metadata))
            assert error.value.details() == "said on purpose"
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Leave(pb.LeaveRequest(), metadata=metadata)
    await server.stop(0)
    assert [denied.reason for denied in told] == [DoorReason.FAILED] * 5
    assert len(guard.rules.calls) == 0
    ours = [record for record in caplog.records if record.name == "thinwire.coordinator"]
    assert [getattr(record, "event", None) for record in ours] == ["coordinator.call_failed"] * 3
    lines = [json.loads(JsonFormatter().format(record)) for record in ours]
    assert all(SECRET_PATH in line["message"] and SECRET_PATH in line["reason"] for line in lines)
    # a traceback for what is no error of ours alone
    assert ["exception" in line for line in lines] == [False, True, True]


async def _all(stream: Any) -> None:
    async for _ in stream:
        pass


def test_a_restored_store_is_closed_to_others(tmp_path: Path) -> None:
    AccessStore(tmp_path).close()
    path = tmp_path / "access.sqlite"
    path.chmod(0o644)
    store = AccessStore(tmp_path)
    store.settings.put("a", "b")  # with its journal
    for found in tmp_path.iterdir():
        assert stat.S_IMODE(found.stat().st_mode) == 0o600, found
    store.close()


def test_a_link_in_place_of_a_key_that_is_being_made_is_not_followed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"of somebody")
    (tmp_path / f"{KEY_FILE}.7.part").symlink_to(elsewhere)
    open_key(tmp_path / KEY_FILE)
    assert elsewhere.read_bytes() == b"of somebody"
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
