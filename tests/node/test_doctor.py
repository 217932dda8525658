"""`thinwire-node doctor` on this machine and against a real coordinator, whose invite it does not use up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from support.real import RealSwarm, ended, run_text
from support.small import small_contract
from thinwire_common.doctor_report import LineReport, RunReport, read_doctor_report
from thinwire_common.options import read_options
from thinwire_node.cli.doctor import Diagnosis, Examination, diagnose, document_of, examined, in_words
from thinwire_node.cli.options import DoctorOptions
from thinwire_node.cli.parser import parser
from thinwire_node.exchange.coordinator.reach import reach
from thinwire_node.forecast import forecast, share_of
from thinwire_node.resources import MOMENTS_ON_HOST, Room, measured_needs
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.errors import ConfigError, RemoteError
from thinwire_proto.identity import statements
from thinwire_proto.identity.invite import parse_invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Swarm"].full_name


def options_of(*words: str) -> DoctorOptions:
    arguments = parser().parse_args(["doctor", "--device", "cpu", "--threads", "1", *words])
    return read_options(DoctorOptions, arguments)


def test_it_asks_the_coordinator_and_leaves_the_invite_its_one_use(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(3))
    made = swarm.command("invite", "--uses", "1")
    assert made.returncode == 0, made.stderr
    invite, folder = made.stdout.split()[-1], swarm.folder / "doctor"
    found = diagnose(options_of(invite, "--state-dir", str(folder)))
    assert (found.machine.device, found.machine.precision, found.machine.threads) == ("cpu", "float32", 1)
    assert found.machine.tokens_s > 0
    assert found.coordinator is not None
    assert (found.coordinator.steps, found.coordinator.nodes_active, found.problem) == (3, 0, "")
    assert found.coordinator.examined is not None, found.coordinator.why_not
    line, run = found.coordinator.examined.line, found.run
    assert min(line.up_bits_s, line.down_bits_s, line.clock_error_s) > 0
    assert run is not None
    assert (run.fits, run.helps, run.samples_full, run.round_s) == (True, True, 4, 5.0)
    assert run.samples_s is not None
    assert run.tokens_s == 64 * run.samples_s
    assert run.verdict in in_words(found)
    report = folder.with_suffix(".json")
    report.write_text(json.dumps(document_of(found)))
    read = read_doctor_report(report)
    assert read.line == LineReport(up_bits_s=line.up_bits_s, down_bits_s=line.down_bits_s)
    assert read.run == RunReport(samples_s=run.samples_s, tokens_s=run.tokens_s, samples_full=4)
    assert not folder.exists()

    stranger = str(replace(parse_invite(invite), fingerprint=bytes(32)))
    refused = diagnose(options_of(stranger, "--state-dir", str(folder)))
    assert refused.coordinator is None
    assert "another coordinator than the invite names" in refused.problem
    wrong = diagnose(options_of(str(replace(parse_invite(invite), token=bytes(16))), "--state-dir", str(folder)))
    assert wrong.coordinator is not None
    assert (wrong.coordinator.examined, wrong.run) == (None, None)
    assert "has not made this invite" in "\n".join(in_words(wrong))

    node = swarm.start("node", "thinwire-node", "start", invite, "--state-dir", str(folder), "--log-format", "json")
    assert ended(node) == 0, node.tail(20)


def test_a_coordinator_that_is_away_ends_it_after_the_machine_was_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1:9"):
        examined(options_of("127.0.0.1:9", "--state-dir", str(tmp_path)), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["memory_bytes"] > 0
    assert found["coordinator"] is None
    assert "127.0.0.1:9" in found["problem"]
    said = in_words(Diagnosis(Examination(**found["machine"]), None, None, found["problem"]))
    assert said[-1].endswith("but the coordinator could not be asked")


@asynccontextmanager
async def earlier(goes: bool = False, spoiled: int = 0) -> AsyncIterator[str]:
    """A coordinator of an earlier version. goes: whether it goes away when it is asked for the status. spoiled: how
    many calls of `Examine` end with grpc's own error."""
    key, stopping = SecretKey(), list[asyncio.Future[None]]()

    async def hello(request: pb.HelloRequest, context: Any) -> pb.HelloReply:
        signature = key.sign(statements.hello(request.nonce, b"challenge"))
        return pb.HelloReply(public_key=key.public.data, challenge=b"challenge", signature=signature)

    async def status(request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        if goes:  # in a task of its own, since it cancels this call
            stopping.append(asyncio.ensure_future(server.stop(0)))
            await asyncio.Event().wait()
        return pb.StatusReply(steps=7)

    async def examine(requests: Any, context: Any) -> None:
        nonlocal spoiled
        spoiled -= 1
        reason = (grpc.StatusCode.INTERNAL, "from Core") if spoiled >= 0 else (grpc.StatusCode.UNIMPLEMENTED, "")
        await context.abort(*reason)

    calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Hello": grpc.unary_unary_rpc_method_handler(
            hello, pb.HelloRequest.FromString, pb.HelloReply.SerializeToString
        ),
        "Status": grpc.unary_unary_rpc_method_handler(
            status, pb.StatusRequest.FromString, pb.StatusReply.SerializeToString
        ),
        "Examine": grpc.stream_stream_rpc_method_handler(
            examine, pb.ExamineRequest.FromString, pb.ExamineReply.SerializeToString
        ),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, calls),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await (stopping[0] if stopping else server.stop(0))


async def test_a_coordinator_of_an_earlier_version_is_asked_for_the_rest() -> None:
    async with earlier() as address:
        found = await reach(address, None, SecretKey())
    assert (found.steps, found.examined) == (7, None)
    assert "of an earlier version" in found.why_not


async def test_an_examination_whose_reason_grpc_hides_is_made_again() -> None:
    async with earlier(spoiled=1) as address:
        found = await reach(address, None, SecretKey())
    assert "of an earlier version" in found.why_not


async def test_a_coordinator_that_goes_away_in_the_middle_is_told() -> None:
    async with earlier(goes=True) as address:
        with pytest.raises(RemoteError, match=rf"^{address}: the coordinator went away in the middle"):
            await reach(address, None, SecretKey())


@pytest.mark.parametrize(
    ("samples_s", "line_s", "base_age_max", "samples", "busy", "binding"),
    [
        (4.0, 2.0, 0, 8, 0.4, "nothing"),  # 2 s of computing and 2 s of line, of 10 s
        (1.0, 4.0, 0, 6, 1.0, "compute"),
        (1.0, 7.5, 0, 2, 0.95, "line"),
        (1.0, 9.5, 0, 0, 1.0, "line"),
        (0.09, 1.0, 0, 0, 1.0, "compute"),
        (1.0, 11.0, 0, 0, 1.0, "line"),
        (2.0, 7.0, 1, 8, 0.7, "nothing"),  # computing goes on during transfers
        (0.5, 7.0, 1, 5, 1.0, "compute"),
    ],
)
def test_a_share_of_a_round_and_what_binds_it(
    samples_s: float, line_s: float, base_age_max: int, samples: int, busy: float, binding: str
) -> None:
    rounds = RoundSpec(length_ms=10_000, samples=8, base_age_max=base_age_max)
    share = share_of(samples_s, line_s, rounds)
    assert (share.samples, share.binding) == (samples, binding)
    assert share.busy == pytest.approx(busy)
    assert share.helps is (samples > 0)
    assert share.verdict.startswith("this machine can help" if samples else "this machine cannot help, because")


def test_a_run_that_does_not_fit_is_not_computed() -> None:
    room = Room(1 << 20, "so much is here", 1 << 40, "a large disk")
    found = forecast(small_contract(), room, torch.device("cpu"), 1e6, 1e6, 1)
    assert (found.fits, found.helps, found.samples_s, found.binding) == (False, False, None, "room")
    assert "this run needs" in found.verdict


def test_moments_that_a_small_card_has_no_room_for_are_told() -> None:
    contract = small_contract()
    needs = measured_needs(contract)
    card = needs.trained + needs.model.least - 1
    room = Room(8 << 30, "so much is here", 1 << 40, "a large disk", device_bytes=card)
    run = forecast(contract, room, torch.device("cpu"), 1e6, 1e6, 1)
    assert (run.fits, run.moments_on_host) == (True, True)
    machine = Examination("cuda:0", "float32", "cuda:0", room.memory_bytes, card, room.disk_bytes, 1, 1.0, "2", "")
    for told, is_said in ((run, True), (replace(run, moments_on_host=False), False)):
        found = Diagnosis(machine, None, told, "")
        assert (MOMENTS_ON_HOST in in_words(found)) is is_said
        assert document_of(found)["run"]["moments_on_host"] is is_said


@pytest.mark.parametrize("several", ["cpu*2", "all", "cuda:0,cuda:1"])
def test_it_examines_one_device(several: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be one device; of several, each is examined by itself"):
        options_of("--state-dir", str(tmp_path), "--device", several)


def test_a_device_that_is_missing_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--device cuda:77: cannot be used"):
        diagnose(options_of("--state-dir", str(tmp_path), "--device", "cuda:77"))
