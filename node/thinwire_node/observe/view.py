"""A report in words and figures for people: on the terminal as it changes, in one line of a log, or as the answer of
`thinwire-node status`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from thinwire_common.traffic import KINDS
from thinwire_common.units import human_bytes, human_seconds
from thinwire_node.observe.report import Report

LABEL_WIDTH = 13
TWO_COLUMNS_FROM = 72
BAR_WIDTH_MAX = 40
UNKNOWN = "–"


def printable(text: str) -> str:
    """What others wrote can do nothing to a terminal but be read there."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def lines(report: Report, width: int) -> list[Text]:
    """The view, each line no wider than `width`; two columns where they fit."""
    head = Text.assemble(("thinwire", "bold"), f" · {printable(report.name)} · ", (printable(report.words), "green"))
    pairs = _pairs(report)
    if width >= TWO_COLUMNS_FROM:
        half = width // 2
        rows = [_pair(*left, half) + _pair(*right) for left, right in zip(pairs[::2], pairs[1::2], strict=True)]
    else:
        rows = [_pair(*pair) for pair in pairs]
    found = [head, _progress(report, width), *rows, *_remarks(report)]
    for line in found:
        line.truncate(width, overflow="ellipsis")
    return found


def _pair(label: str, value: str, width: int | None = None) -> Text:
    """`label value`, filled up or cut to `width`."""
    text = Text.assemble((label.ljust(LABEL_WIDTH), "dim"), value)
    if width is not None:
        text.truncate(width - 1, overflow="ellipsis")
        text.append(" " * (width - text.cell_len))
    return text


def _progress(report: Report, width: int) -> Text:
    step, steps = report.place.step, report.place.steps
    if step is None or not steps:
        return Text("the run is not known yet", style="dim")
    words = f" step {step:,} of {steps:,}"
    whole = max(0, min(BAR_WIDTH_MAX, width - len(words)))
    done = min(whole, whole * step // steps)
    return Text.assemble(("━" * done, "green"), ("━" * (whole - done), "dim"), words)


def _pairs(report: Report) -> list[tuple[str, str]]:
    """Labels and values, an even number of them."""
    place, given, passed, clock = report.place, report.given, report.bytes, report.clock
    left = "" if place.round_left_s is None else f", {human_seconds(place.round_left_s)} left"
    heard = given.counted + given.not_counted
    return [
        ("round", UNKNOWN if place.round is None else f"{place.round:,}{left}"),
        ("loss", UNKNOWN if given.loss is None else f"{given.loss:.3f} nats a token"),
        ("tokens", f"{given.tokens:,} counted"),
        ("speed", f"{given.tokens_s:,.0f} tokens/s"),
        ("up", f"{human_bytes(sum(passed.sent.values()))}, {human_bytes(passed.sent_s)}/s"),
        ("down", f"{human_bytes(sum(passed.received.values()))}, {human_bytes(passed.received_s)}/s"),
        ("counted", f"{given.counted:,} of {heard:,} contributions" if heard else UNKNOWN),
        ("clock", UNKNOWN if clock.error_s is None else f"known to ±{human_seconds(clock.error_s)}"),
        ("lease", UNKNOWN if place.lease_samples is None else f"{place.lease_samples:,} samples left"),
        ("device", report.device.name or UNKNOWN),
    ]


def _remarks(report: Report) -> list[Text]:
    """What is seldom, and told only where it is there."""
    given, found = report.given, []
    if given.not_counted:
        found.append(
            _pair("not counted", f"{given.not_counted:,}, the newest since {printable(given.not_counted_why)}")
        )
    if given.micro_batches_dropped:
        found.append(_pair("dropped", f"{given.micro_batches_dropped:,} micro-batches that were not finite"))
    if given.gradients_dropped:
        found.append(_pair("too old", f"{given.gradients_dropped:,} gradients dropped"))
    if given.resyncs:
        found.append(_pair("resyncs", f"{given.resyncs:,}"))
    return found


def byte_lines(report: Report) -> list[Text]:
    """Every byte by kind, to the byte."""
    passed = report.bytes
    rows: list[tuple[str, int | None, int | None]] = [
        (kind, passed.sent.get(kind, 0), passed.received.get(kind, 0))
        for kind in KINDS
        if passed.sent.get(kind) or passed.received.get(kind)
    ]
    rows += [("payload", sum(passed.sent.values()), sum(passed.received.values()))]
    if passed.wire_sent is not None:
        rows += [("wire", passed.wire_sent, passed.wire_received)]
    heading = Text(f"{'bytes':{LABEL_WIDTH}}{'sent':>16}{'received':>16}", style="dim")
    return [
        heading,
        *(Text(f"{kind:{LABEL_WIDTH}}{sent or 0:>16,}{received or 0:>16,}") for kind, sent, received in rows),
    ]


def one_line(report: Report) -> str:
    """For a log."""
    place, given, passed = report.place, report.given, report.bytes
    parts: Iterable[str | None] = (
        report.words,
        None if place.round is None else f"round {place.round}",
        None if place.step is None else f"step {place.step} of {place.steps}",
        None if given.loss is None else f"loss {given.loss:.3f}",
        f"{given.tokens_s:,.0f} tokens/s",
        f"up {human_bytes(sum(passed.sent.values()))}",
        f"down {human_bytes(sum(passed.received.values()))}",
        f"{given.counted} counted, {given.not_counted} not",
    )
    return "; ".join(part for part in parts if part)
