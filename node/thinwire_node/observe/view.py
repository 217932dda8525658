"""Formats a report for people: for the live view, for one line in the log and for `thinwire-node status`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from thinwire_common.traffic import KINDS
from thinwire_common.units import human_bytes, human_count, human_seconds
from thinwire_node.report import Peers, Report, Tally, short_name
from thinwire_proto.clean_text import clean_name, clean_text

LABEL_WIDTH = 13
EDGES_SHOWN = 8
TWO_COLUMNS_FROM = 72
BAR_WIDTH_MAX = 40
COUNT_WIDTH = 16
UNKNOWN = "–"
WIRE_NOTE = "wire: TCP of the connections to the coordinator, when last read; lines to peers are in payload alone"


def lines(report: Report, width: int) -> list[Text]:
    """The lines of the view, cut to `width` characters."""
    found = whole_lines(report, width)
    for line in found:
        line.truncate(width, overflow="ellipsis")
    return found


def whole_lines(report: Report, width: int) -> list[Text]:
    """The lines of the view for a terminal of this width. Uses two columns if they fit; one may be wider than that."""
    head = Text.assemble(("thinwire", "bold"), f" · {clean_name(report.name)} · ", (clean_text(report.words), "green"))
    pairs = _pairs(report)
    if width >= TWO_COLUMNS_FROM:
        half = width // 2
        rows = [_pair(*left, half) + _pair(*right) for left, right in zip(pairs[::2], pairs[1::2], strict=True)]
    else:
        rows = [_pair(*pair) for pair in pairs]
    return [head, _progress(report, width), *rows, *_edges(report.part.peers), *_remarks(report)]


def _pair(label: str, value: str, width: int | None = None) -> Text:
    """A line `label value`, padded or truncated to `width`."""
    text = Text.assemble((label.ljust(LABEL_WIDTH), "dim"), value)
    if width is not None:
        text.truncate(width - 1, overflow="ellipsis")
        text.append(" " * (width - text.cell_len))
    return text


def _progress(report: Report, width: int) -> Text:
    step, steps = report.part.step, report.steps
    if step is None or not steps:
        return Text("the node does not know the run yet", style="dim")
    words = f" {_unit(report)} {step:,} of {steps:,}"
    whole = max(0, min(BAR_WIDTH_MAX, width - len(words)))
    done = min(whole, whole * step // steps)
    return Text.assemble(("━" * done, "green"), ("━" * (whole - done), "dim"), words)


def _unit(report: Report) -> str:
    return "step" if report.part.peers is None else "iteration"


def _lines(peers: Peers) -> str:
    return f"{peers.direct} direct, {peers.present - peers.direct} relay, {peers.absent} away"


def _between(peers: Peers, iterations: int) -> list[tuple[str, str]]:
    """Pairs of labels with their values, in a gossip run. iterations: finished by this process."""
    found = [("peers", _lines(peers)), ("topology", f"{peers.topology}" if peers.topology else UNKNOWN)]
    for line in ("direct", "relay"):
        sent, received = peers.sent_bytes_by_line.get(line, 0), peers.received_bytes_by_line.get(line, 0)
        found.append((line, f"{human_bytes(sent)} up, {human_bytes(received)} down"))
    both = sum(peers.sent_bytes_by_line.values()) + sum(peers.received_bytes_by_line.values())
    found.append(("messages", f"{human_bytes(both / iterations)} an iteration" if iterations else UNKNOWN))
    return found


def _edges(peers: Peers | None) -> list[Text]:
    """A line for each edge, and how many more there are."""
    if peers is None:
        return []
    found = [
        _pair(
            f"to {short_name(edge.node_id)}" if edge.node_id else f"member {edge.member}",
            edge.line if edge.iteration is None else f"{edge.line}, newest message of iteration {edge.iteration:,}",
        )
        for edge in peers.edges[:EDGES_SHOWN]
    ]
    more = len(peers.edges) - len(found)
    return [*found, Text(f"and {more} more peers", style="dim")] if more > 0 else found


def _pairs(report: Report) -> list[tuple[str, str]]:
    """An even number of labels with their values."""
    position, given = report.part, report.given
    left = "" if position.round_left_s is None else f", {human_seconds(position.round_left_s)} left"
    heard = given.counted + given.not_counted
    if report.part.peers is not None:
        lease = UNKNOWN if report.lease_samples is None else f"{report.lease_samples:,} samples left"
        return [
            *_common(report),
            *_between(report.part.peers, given.counted),
            ("lease", lease),
            ("device", report.device.name or UNKNOWN),
        ]
    return [
        ("round", UNKNOWN if position.round is None else f"{position.round:,}{left}"),
        *_common(report),
        ("counted", f"{given.counted:,} of {heard:,} contributions" if heard else UNKNOWN),
        ("clock", UNKNOWN if position.clock_error_s is None else f"known to ±{human_seconds(position.clock_error_s)}"),
        ("lease", UNKNOWN if report.lease_samples is None else f"{report.lease_samples:,} samples left"),
        ("device", report.device.name or UNKNOWN),
    ]


def _common(report: Report) -> list[tuple[str, str]]:
    """The pairs that all runs have."""
    given, passed = report.given, report.bytes
    return [
        ("loss", UNKNOWN if given.loss is None else f"{given.loss:.3f} nats/{report.loss_unit}"),
        ("tokens", f"{given.tokens:,} counted"),
        ("speed", f"{report.tokens_s:,.0f} tokens/s"),
        ("up", f"{human_bytes(sum(passed.sent.values()))}, {human_bytes(passed.sent_s)}/s"),
        ("down", f"{human_bytes(sum(passed.received.values()))}, {human_bytes(passed.received_s)}/s"),
        ("today", tally_in_words(report.today)),
        ("in all", tally_in_words(report.in_all)),
    ]


def tally_in_words(tally: Tally) -> str:
    """The tokens that a node gave, and the time that it computed."""
    return f"{human_count(tally.tokens)} tokens in {human_seconds(tally.compute_s)}"


def _remarks(report: Report) -> list[Text]:
    """Lines for rare events, shown only after they have happened."""
    given, found = report.given, []
    if given.not_counted:
        found.append(_pair("not counted", f"{given.not_counted:,}, most recently: {clean_text(given.not_counted_why)}"))
    if given.dropped:
        found.append(_pair("dropped", f"{given.dropped:,} micro-batches that were not finite"))
    if given.too_old:
        found.append(_pair("too old", f"{given.too_old:,} gradients dropped"))
    if report.data_wait_s >= 1:
        found.append(_pair("data", f"training waited {human_seconds(report.data_wait_s)} for them"))
    if report.part.peers is not None and report.part.peers.waited_s >= 1:
        found.append(_pair("waited", f"{human_seconds(report.part.peers.waited_s)} for messages of peers"))
    if given.samples_skipped:
        found.append(_pair("skipped", f"{given.samples_skipped:,} samples whose shard could not be read"))
    if given.resyncs:
        found.append(_pair("resyncs", f"{given.resyncs:,}"))
    return found


def byte_lines(report: Report, width: int) -> list[Text]:
    """A table of exact byte counts by kind, in `width` characters if the counts allow it."""
    passed = report.bytes
    rows: list[tuple[str, int | None, int | None]] = [
        (kind, passed.sent.get(kind, 0), passed.received.get(kind, 0))
        for kind in KINDS
        if passed.sent.get(kind) or passed.received.get(kind)
    ]
    rows += [("payload", sum(passed.sent.values()), sum(passed.received.values()))]
    if passed.wire_sent is not None:
        rows += [("wire", passed.wire_sent, passed.wire_received)]
    column = max(1, min(COUNT_WIDTH, (width - LABEL_WIDTH) // 2) - 1)
    heading = Text(f"{'bytes':{LABEL_WIDTH}} {'sent':>{column}} {'received':>{column}}", style="dim")
    return [
        heading,
        *(
            Text(f"{kind:{LABEL_WIDTH}} {sent or 0:>{column},} {received or 0:>{column},}")
            for kind, sent, received in rows
        ),
        *([] if passed.wire_sent is None else [Text(WIRE_NOTE, style="dim")]),
    ]


def one_line(report: Report) -> str:
    """The report in one line, for the log."""
    position, given, passed = report.part, report.given, report.bytes
    parts: Iterable[str | None] = (
        report.words,
        None if position.round is None else f"round {position.round}",
        None if position.step is None else f"{_unit(report)} {position.step} of {report.steps}",
        None if given.loss is None else f"loss {given.loss:.3f}",
        f"{report.tokens_s:,.0f} tokens/s",
        f"up {human_bytes(sum(passed.sent.values()))}",
        f"down {human_bytes(sum(passed.received.values()))}",
        f"{given.counted} counted, {given.not_counted} not" if report.part.peers is None else _lines(report.part.peers),
    )
    return "; ".join(part for part in parts if part)
