"""The status and history of a swarm as plain values for JSON, and all its curves as one table in CSV (RFC 4180)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from thinwire_coordinator.hall.counts import NodeCounts
from thinwire_coordinator.hall.events import Sampled
from thinwire_coordinator.hall.ledger.results import Result
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.observe.history import Curve, History, Manner, Share
from thinwire_coordinator.hall.series import BUCKETS_MAX, Bucket
from thinwire_coordinator.hall.view import Plain, RunView
from thinwire_proto.clean_text import clean_name, clean_text, shown_as_written
from thinwire_proto.contract import CorpusSpec
from thinwire_proto.contract.amendment import Amendment

VOLUNTEERS = 12
"""Number of volunteers listed by name. The page shows how many more there are."""
AMENDMENTS_SHOWN = 20
"""Newest amendments that the page marks."""
NODES_MAX = 200
"""Maximum number of rows of the table of nodes in one answer."""

EVALUATED_MAX, METRICS_MAX, POINTS_OF_METRIC_MAX = 12, 3, 50
"""Bounds on what the page shows of `evaluate`: tasks, texts and sets; figures of each; steps of each figure."""


def _unit_of(swarm: RunView) -> str:
    if isinstance(swarm.contract.data, CorpusSpec):
        return "nats per byte"
    return f"nats per {swarm.loss_unit}"


def run_of(swarm: RunView) -> Plain:
    """The properties of a run that only amendments change."""
    contract = swarm.contract
    return {
        "contract": contract.hash.hex(),
        "parameters": swarm.layout.parameters,
        "model": contract.model.in_words(),
        "k": contract.demo.k,
        "exchange": contract.exchange.kind,
        "steps": swarm.steps,
        "pace": contract.round.pace,
        "length_s": contract.round.length_s,
        "unit": _unit_of(swarm),
        "held_out": [
            {"name": found.name, "bits_per_nat": found.bits_per_nat(contract.model.context)}
            for found in swarm.held_out_sets
        ],
        "amendments": [
            {"step": amendment.step, "text": amendment.in_words}
            for amendment in contract.amendments[-AMENDMENTS_SHOWN:]
        ],
    }


def curves_of(sets: Sequence[str], history: History) -> list[Curve]:
    """The curves in the order of these sets, which browsers know them by. One may have been measured before another, or
    not yet."""
    return [history.held_out.get(name, Curve()) for name in sets]


def summary(swarm: RunView, history: History) -> Plain:
    """The message that browsers get once a second. Its size does not depend on the number of nodes."""
    now = swarm.now
    counts = swarm.counts
    moved = counts.bytes_up + counts.bytes_down
    curves = curves_of([found.name for found in swarm.held_out_sets], history)
    first, newest = (curves[0].first, curves[0].newest) if curves else (None, None)
    return {
        "state": swarm.condition,
        "term": swarm.term.number,
        "round": swarm.round_number,
        "step": swarm.step,
        "at_step": history.step,
        "gossip": swarm.own_summary(),
        "at_s": round(now - history.started, 1),
        "clock": swarm.clock(),
        "loss": {
            "training": shortened(swarm.loss),
            "held_out": shortened(newest[1]) if newest else None,
            "first": shortened(first[1]) if first else None,
            "sets": [shortened(curve.newest[1]) if curve.newest else None for curve in curves],
            "set_steps": [curve.newest[0] if curve.newest else None for curve in curves],
            "diverged": [curve.diverged for curve in curves],
        },
        "tokens": history.tokens_before + counts.tokens,
        "tokens_per_s": round(history.tokens_per_s(now), 1),
        "bytes": {
            "up": counts.bytes_up,
            "down": counts.bytes_down,
            "fetched": counts.bytes_fetched,
            "dense": counts.dense_bytes,
            "fewer": shortened(2 * counts.dense_bytes / moved) if moved and counts.dense_bytes else None,
            "since_step": history.since_step,
        },
        "nodes": {
            "active": swarm.active,
            "known": len(swarm.members),
            "compared": counts.fingerprints_compared,
            "different": counts.fingerprints_different,
        },
        "rounds_void": history.rounds_void_before + counts.rounds_void.total(),
        "history_complete": history.complete,
        "sample_step": history.sample.step if history.sample else None,
    }


Row = tuple[str, Member, NodeCounts, Share, Manner]
SORTS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row[1].name.casefold(),
    "active": lambda row: not row[1].active,
    "rounds": lambda row: -row[3].rounds,
    "tokens": lambda row: -row[3].tokens,
    "weight": lambda row: -row[4].weight,
    "early": lambda row: math.inf if row[4].early_s is None else row[4].early_s,
    "equal": lambda row: {False: 0, None: 1, True: 2}[row[2].replica_equal],
    "up": lambda row: -row[2].bytes_up,
    "down": lambda row: -row[2].bytes_down,
    "iteration": lambda row: -row[2].iteration,
    "loss": lambda row: -math.inf if row[2].loss is None else -row[2].loss,
    "direct": lambda row: -row[2].direct_up - row[2].direct_down,
    "relay": lambda row: -row[2].relay_up - row[2].relay_down,
}
"""Sort keys of the table of nodes. The most interesting rows come first: largest, latest, differing."""


OWN_ORDERS = frozenset({"iteration", "loss", "direct", "relay"})
"""Orders that only some kinds of exchange have; see `RunView.own_orders`."""
DEFAULT_SORT = "tokens"


def nodes(swarm: RunView, history: History, sort: str, offset: int, count: int, *, in_full: bool) -> Plain:
    """One page of the table of nodes. sort: a key of SORTS; a leading minus reverses it. in_full: for the organizer;
    others get what is public, and null for all else.

    An order tells of what it is made from, so others get DEFAULT_SORT in place of an order by anything else. The answer
    says its order (`sort`), and which ones there are for whoever asked (`sorts`)."""
    public = swarm.public
    sorts = [
        name for name in SORTS if (in_full or name in public) and (name not in OWN_ORDERS or name in swarm.own_orders)
    ]
    if sort.removeprefix("-") not in sorts:
        sort = DEFAULT_SORT
    rows: list[Row] = [
        (node, member, swarm.counts.of(node), history.share(node), history.manners.get(node, Manner()))
        for node, member in swarm.members.items()
    ]
    rows.sort(key=lambda row: (row[1].name.casefold(), row[0]))  # the order of rows with equal keys
    rows.sort(key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    shown = [_node(*row) | swarm.own_fields(row[0], row[2]) for row in rows[offset : offset + count]]
    if not in_full:
        shown = [{key: value if key in public else None for key, value in row.items()} for row in shown]
    return {"total": len(rows), "offset": offset, "sort": sort, "sorts": sorts, "rows": shown}


def _node(node: str, member: Member, counts: NodeCounts, share: Share, manner: Manner) -> Plain:
    refused = manner.refused
    return {
        "id": node[:8],
        "name": member.name,
        "active": member.active,
        "rounds": share.rounds,
        "tokens": share.tokens,
        "weight": manner.weight,
        "early_s": None if manner.early_s is None else round(manner.early_s, 3),
        "equal": counts.replica_equal,
        "up": counts.bytes_up,
        "down": counts.bytes_down,
        "not_counted": counts.not_counted,
        "why_not": refused.reason.words if refused else None,
        "lost": counts.lost,
    }


def volunteers(swarm: RunView, history: History) -> Plain:
    """The volunteers with the most tokens over the whole run, including those that have left."""
    shares = sorted(history.shares().items(), key=lambda item: (-item[1].tokens, item[0]))
    total = history.tokens_before + swarm.counts.tokens
    by_id = swarm.members

    def name(node: str) -> str:
        return by_id[node].name if node in by_id else clean_name(history.names.get(node, "")) or node[:8]

    rows = [
        {"name": name(node), "tokens": share.tokens, "rounds": share.rounds, "share": shortened(share.tokens / total)}
        for node, share in shares[:VOLUNTEERS]
        if share.tokens
    ]
    return {"total": len(shares), "rows": rows}


def details(swarm: RunView, history: History) -> Plain:
    """Values that change rarely. Browsers request them."""
    now, sample = swarm.now, history.sample
    voids = [
        {
            "first": entry.first,
            "last": entry.last,
            "why": entry.why,
            "ago_s": None if entry.at is None else round(now - entry.at),
        }
        for entry in reversed(history.voids)
    ]
    return {
        "run": run_of(swarm),
        "volunteers": volunteers(swarm, history),
        "voids": voids,
        "sample": _sample(sample) if sample else None,
    }


def evaluated(results: Sequence[Result]) -> list[Plain]:
    """The newest of what `evaluate` has found, by task, text or set, but for what the run measures itself."""
    found: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for one in sorted((one for one in results if not one.is_on_curve), key=lambda one: one.step):
        found.setdefault((one.kind, one.name), {}).setdefault(one.metric, []).append(one)
    newest: dict[tuple[str, str], int] = {(one.kind, one.name): place for place, one in enumerate(results)}
    shown = sorted(found, key=lambda name: newest[name])[-EVALUATED_MAX:]
    return [
        {"kind": kind, "name": clean_text(name), "metrics": [_metric(*one) for one in _first(found[kind, name])]}
        for kind, name in sorted(shown)
    ]


def _first(metrics: dict[str, list[Result]]) -> list[tuple[str, list[Result]]]:
    return [(name, points[-POINTS_OF_METRIC_MAX:]) for name, points in list(metrics.items())[:METRICS_MAX]]


def _metric(name: str, points: Sequence[Result]) -> Plain:
    return {
        "name": clean_text(name),
        "step": [one.step for one in points],
        "value": [shortened(one.value) for one in points],
        "stderr": [shortened(one.stderr) for one in points],
    }


def _sample(sample: Sampled) -> Plain:
    return {"step": sample.step, "prompt": sample.prompt, "text": shown_as_written(sample.text)}


def series(history: History, points: int, held_out: str = "") -> Plain:
    """The series as columns of at most `points` values each. Tokens and bytes are running sums. Bytes are counted from
    the start of the current term. held_out: name of the held-out set; by default the first."""
    found = history.series.points(points)
    chosen = held_out or next(iter(history.held_out), "")
    measured = history.held_out[chosen].series.points(points) if chosen else []
    columns: dict[str, list[Any]] = {}
    for name in ("tokens", "bytes_up", "bytes_down", "dense_bytes"):
        sums = accumulate(getattr(bucket, name) for bucket in found)
        began = [name == "tokens" or bucket.at_s is not None for bucket in found]
        columns[name] = [number if known else None for number, known in zip(sums, began, strict=True)]
    columns["step"] = [bucket.step for bucket in found]
    columns["at_s"] = [shortened(bucket.at_s) for bucket in found]
    columns["nodes"] = [bucket.nodes for bucket in found]
    return {
        "term_began_at_step": history.since_step,
        "complete": history.complete,
        "steps": columns | _losses(found),
        "held_out": {"set": chosen, "step": [bucket.step for bucket in measured]} | _losses(measured),
    }


def _losses(buckets: list[Bucket]) -> dict[str, list[float | None]]:
    return {
        "loss": [shortened(bucket.loss) for bucket in buckets],
        "loss_min": [shortened(bucket.loss_min) if bucket.losses else None for bucket in buckets],
        "loss_max": [shortened(bucket.loss_max) if bucket.losses else None for bucket in buckets],
    }


def shortened(number: float | None, digits: int = 4) -> float | None:
    """Round to `digits` decimals; four are enough for charts. Returns None if not finite: JSON has no infinity."""
    return None if number is None or not math.isfinite(number) else round(number, digits)


MEDIA_TYPE = "text/csv; charset=utf-8; header=present"
COLUMNS = ("step", "time_s", "training_loss", "tokens", "bytes_up", "bytes_down", "dense_bytes", "nodes", "amended")
"""The fixed columns. A column `held_out_loss:SET` follows for each held-out set."""


def curves_csv(history: History, amendments: Iterable[Amendment] = ()) -> bytes:
    """One row for each step at which something is known, at most about `BUCKETS_MAX` for each curve.

    In a long run, a row stands for several steps and has the step of the last one: losses are their means, nodes and
    time those of the last step. Tokens are a running sum over the run. Bytes are running sums since this term began,
    and time_s counts from there; both are empty in rows of earlier terms. `amended` has, in words, what the contract
    has changed to since the row before. A field that is not known is empty.
    """
    found = history.series.points(BUCKETS_MAX)
    up, down = _running_sum(found, "bytes_up"), _running_sum(found, "bytes_down")
    traffic = zip(up, down, _running_sum(found, "dense_bytes"), strict=True)
    rows: dict[int, list[object]] = {}
    for point, tokens, moved in zip(found, _running_sum(found, "tokens"), traffic, strict=True):
        known = moved if point.at_s is not None else (None,) * len(moved)
        rows[point.step] = [point.step, point.at_s, point.loss, tokens, *known, point.nodes, None]
    for amendment in amendments:
        if row := next((rows[step] for step in sorted(rows) if step > amendment.step), None):
            row[-1] = f"{row[-1]}; {amendment.in_words}" if row[-1] else amendment.in_words
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
