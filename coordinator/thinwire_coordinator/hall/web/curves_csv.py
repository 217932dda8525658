"""All curves of a run as one table in CSV (RFC 4180), for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from itertools import accumulate

from thinwire_coordinator.hall.observe.history import History
from thinwire_coordinator.hall.series import BUCKETS_MAX, Bucket

MEDIA_TYPE = "text/csv; charset=utf-8; header=present"
COLUMNS = ("step", "time_s", "training_loss", "tokens", "bytes_up", "bytes_down", "dense_bytes", "nodes")
"""The fixed columns. A column `held_out_loss:SET` follows for each held-out set."""


def curves_csv(history: History) -> bytes:
    """One row for each step at which something is known, at most about `BUCKETS_MAX` for each curve.

    In a long run, a row stands for several steps and has the step of the last one: losses are their means, nodes and
    time those of the last step. Tokens are a running sum over the run. Bytes are running sums since this term began,
    and time_s counts from there; both are empty in rows of earlier terms. A field that is not known is empty.
    """
    found = history.series.points(BUCKETS_MAX)
    up, down = _running_sum(found, "bytes_up"), _running_sum(found, "bytes_down")
    traffic = zip(up, down, _running_sum(found, "dense_bytes"), strict=True)
    rows: dict[int, list[object]] = {}
    for point, tokens, moved in zip(found, _running_sum(found, "tokens"), traffic, strict=True):
        known = moved if point.at_s is not None else (None,) * len(moved)
        rows[point.step] = [point.step, point.at_s, point.loss, tokens, *known, point.nodes]
    held_out = [
        {point.step: point.loss for point in curve.series.points(BUCKETS_MAX)} for curve in history.held_out.values()
    ]
    text = io.StringIO(newline="")
    writer = csv.writer(text)  # None becomes an empty field, and lines end with CRLF
    writer.writerow([*COLUMNS, *(f"held_out_loss:{name}" for name in history.held_out)])
    for step in sorted({*rows, *(step for losses in held_out for step in losses)}):
        fixed = rows.get(step, [step, *[None] * (len(COLUMNS) - 1)])
        writer.writerow([*fixed, *(losses.get(step) for losses in held_out)])
    return text.getvalue().encode()


def _running_sum(points: list[Bucket], name: str) -> list[int]:
    return list(accumulate(getattr(point, name) for point in points))
