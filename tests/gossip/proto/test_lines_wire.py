"""The report of a node's lines: both ways over the wire, and its bounds."""

from __future__ import annotations

from thinwire_proto.gossip.lines_wire import lines_of, report_of_lines
from thinwire_proto.gossip.seen_lines import EDGES_MAX, SeenEdge, SeenLines
from thinwire_proto.wire import service_pb2 as pb


def test_lines_come_back_as_they_were_sent() -> None:
    edges = (SeenEdge(1, "away", None), SeenEdge(2, "direct", 0, 0), SeenEdge(3, "relay", 7, 1 << 31))
    lines = SeenLines(5, 6, edges)
    assert lines_of(pb.LinesReport.FromString(report_of_lines(lines).SerializeToString())) == lines


def test_a_node_reports_at_most_so_many_edges() -> None:
    edges = tuple(SeenEdge(member, "direct", member) for member in range(EDGES_MAX + 1))
    assert [edge.member for edge in report_of_lines(SeenLines(0, 0, edges)).edges] == list(range(EDGES_MAX))


def test_the_reader_leaves_out_edges_beyond_the_bound() -> None:
    report = pb.LinesReport(edges=[pb.EdgeReport(member=member) for member in range(EDGES_MAX + 1)])
    assert [edge.member for edge in lines_of(report).edges] == list(range(EDGES_MAX))


def test_the_reader_leaves_out_lines_of_an_unknown_kind() -> None:
    known = pb.EdgeReport(member=2, line=pb.EdgeReport.LINE_RELAY).SerializeToString()
    unknown = b"\x08\x01\x10\x09"  # member 1, line 9
    report = pb.LinesReport.FromString(b"".join(b"\x1a" + bytes([len(edge)]) + edge for edge in (unknown, known)))
    assert len(report.edges) == 2
    assert lines_of(report).edges == (SeenEdge(2, "relay", None),)
