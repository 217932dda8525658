"""Reports of a beat: their signed bytes, the body of the row that seals them, and the lines that they tell of."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import SKETCH_BYTES
from thinwire_proto.gossip.lines_wire import lines_of, report_of_lines
from thinwire_proto.gossip.report_wire import report_of, sign_report
from thinwire_proto.gossip.reports import (
    EDGES_MAX,
    Report,
    SeenEdge,
    SeenLines,
    SignedReport,
    decode_reports,
    encode_reports,
)
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb

KEY = SecretKey()
SESSION = b"s" * 32


def signed(number: int = 1, **fields: object) -> SignedReport:
    request = pb.BeatRequest(**({"topology": 1, "iteration": 7, "head": b"h" * 32, "loss": 2.7} | fields))  # type: ignore[arg-type]
    sign_report(request, number, KEY, SESSION)
    return SignedReport(KEY.public.node_id, SESSION, request.number, report_of(request), request.signature)


def test_a_body_gives_back_the_reports_and_their_signatures_hold() -> None:
    sent = [signed(), signed(2, sketch=b"\1" * SKETCH_BYTES, sketch_iteration=7, missed=[3, 4], trained_through=0)]
    found = decode_reports(encode_reports(sent))
    assert found == sent
    assert all(KEY.public.verifies(report.signature, report.statement) for report in found)
    assert len({report.hash for report in found}) == 2


def test_the_signature_covers_each_field_the_session_and_the_number() -> None:
    right = signed()
    others: dict[str, object] = dict.fromkeys(("topology", "iteration", "samples", "compute_ms", "step_norm"), 1)
    others |= {"head": b"g" * 32, "loss": 1.0, "trained_through": 0, "sketch_hash": b"x" * 32, "sketch_iteration": 1}
    others |= {"missed": (1,)}
    others["topology"] = 2
    for name, value in others.items():
        wrong = replace(right, report=replace(right.report, **{name: value}))  # type: ignore[arg-type]
        assert not KEY.public.verifies(wrong.signature, wrong.statement), name
    for wrong in (replace(right, session=b"t" * 32), replace(right, number=2)):
        assert not KEY.public.verifies(wrong.signature, wrong.statement)
    assert set(others) == set(Report.__dataclass_fields__)


def test_a_sketch_of_another_size_is_refused() -> None:
    with pytest.raises(PayloadError, match="4096 bytes"):
        signed(sketch=b"\1" * (SKETCH_BYTES + 1))


@pytest.mark.parametrize(("sketch", "iteration"), [(bytes(SKETCH_BYTES), 0), (bytes(SKETCH_BYTES), 8), (b"", 7)])
def test_a_sketch_is_of_an_iteration_that_the_node_has_come_to(sketch: bytes, iteration: int) -> None:
    assert "sketch" in signed(sketch=sketch, sketch_iteration=iteration).report.problem()
    assert not signed(sketch=bytes(SKETCH_BYTES), sketch_iteration=7).report.problem()


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.__setitem__(0, 2),
        lambda found: found[1][0].__setitem__(0, 7),
        lambda found: found[1][0].__setitem__(1, b"short"),
        lambda found: found[1][0].__setitem__(1, "s" * 32),
        lambda found: found[1][0].__setitem__(2, 0),
        lambda found: found[1][0].__setitem__(4, b"short"),
        lambda found: found[1][0].append(1),
        lambda found: found[1][0][3].pop(),
        lambda found: found[1][0][3].__setitem__(2, b"short"),
        lambda found: found[1][0][3].__setitem__(9, list(range(65))),
        lambda found: found[1][0][3].__setitem__(4, 0.1),  # no float32
        lambda found: found[1][0][3].__setitem__(10, float("nan")),
        lambda found: found.append(1),
    ],
)
def test_what_is_no_body_is_refused(change: object) -> None:
    found = msgpack.unpackb(encode_reports([signed()]))
    change(found)  # type: ignore[operator]
    with pytest.raises(PayloadError):
        decode_reports(msgpack.packb(found))


def test_lines_come_back_as_they_were_sent() -> None:
    edges = (SeenEdge(1, "away", None), SeenEdge(2, "direct", 0), SeenEdge(3, "relay", 7))
    lines = SeenLines(5, 6, edges)
    assert lines_of(pb.LinesReport.FromString(report_of_lines(lines).SerializeToString())) == lines


def test_a_node_reports_at_most_so_many_edges() -> None:
    edges = tuple(SeenEdge(member, "direct", member) for member in range(EDGES_MAX + 1))
    assert [edge.member for edge in report_of_lines(SeenLines(0, 0, edges)).edges] == list(range(EDGES_MAX))


def test_the_reader_leaves_out_lines_of_an_unknown_kind() -> None:
    known = pb.EdgeReport(member=2, line=pb.EdgeReport.LINE_RELAY).SerializeToString()
    unknown = b"\x08\x01\x10\x09"  # member 1, line 9
    report = pb.LinesReport.FromString(b"".join(b"\x1a" + bytes([len(edge)]) + edge for edge in (unknown, known)))
    assert len(report.edges) == 2
    assert lines_of(report).edges == (SeenEdge(2, "relay", None),)
