"""Converts between the lines of a node and their message on the wire."""

from __future__ import annotations

from thinwire_proto.gossip.reports import EDGES_MAX, Line, SeenEdge, SeenLines
from thinwire_proto.wire import service_pb2 as pb

LINES: dict[pb.EdgeReport.Line.ValueType, Line] = {
    pb.EdgeReport.LINE_NONE: "away",
    pb.EdgeReport.LINE_DIRECT: "direct",
    pb.EdgeReport.LINE_RELAY: "relay",
}
NUMBERS = {line: number for number, line in LINES.items()}


def report_of_lines(lines: SeenLines) -> pb.LinesReport:
    edges = [
        pb.EdgeReport(member=edge.member, line=NUMBERS[edge.line], iteration=edge.iteration)
        for edge in lines.edges[:EDGES_MAX]
    ]
    return pb.LinesReport(direct_sent=lines.direct_sent, direct_received=lines.direct_received, edges=edges)


def lines_of(report: pb.LinesReport) -> SeenLines:
    """Read a report; edges beyond EDGES_MAX, and lines of an unknown kind, are left out."""
    edges = tuple(_edge_of(edge) for edge in report.edges[:EDGES_MAX] if edge.line in LINES)
    return SeenLines(report.direct_sent, report.direct_received, edges)


def _edge_of(edge: pb.EdgeReport) -> SeenEdge:
    return SeenEdge(edge.member, LINES[edge.line], edge.iteration if edge.HasField("iteration") else None)
