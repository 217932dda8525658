"""Tests the page's history: bucketed series against a simple reference, watched events, and the ledger's past."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
from itertools import accumulate
from pathlib import Path

import pytest

from support.sealed_run import make_run, node_key
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import Event, LossMeasured, RoundSealed
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.hall.observe.history import History, Past, read_past
from thinwire_coordinator.hall.series import Bucket, Series
from thinwire_coordinator.hall.web import status
from thinwire_coordinator.hall.web.status import COLUMNS, curves_csv
from thinwire_coordinator.star.star import bucket_of
from thinwire_proto.all_reduce import ring_bytes_of_all
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.wire.rows import Counted

LOSSES = ("loss", "loss_min", "loss_max")
ROUNDS, ANSWER_BYTES_MAX = 8_000, 64_000
"""Maximum size of /api/history with 400 points, for any length of the run."""


def steps(count: int, seed: int = 1, first: int = 1) -> list[Bucket]:
    rng = random.Random(seed)
    made = []
    for step in range(first, first + count):
        bucket = Bucket(
            step, tokens=rng.randrange(100), bytes_up=rng.randrange(9), nodes=rng.randrange(5), at_s=step / 2
        )
        if rng.random() < 0.8:
            loss = rng.random()
            bucket.loss_sum, bucket.losses, bucket.loss_min, bucket.loss_max = loss, 1, loss, loss
        made.append(bucket)
    return made


def dumb(raw: list[Bucket], stride: int) -> list[tuple[object, ...]]:
    """The reference: keeps all steps, and groups them on demand."""
    groups: dict[int, list[Bucket]] = {}
    for bucket in raw:
        groups.setdefault(bucket.step // stride, []).append(bucket)
    found: list[tuple[object, ...]] = []
    for group in groups.values():
        losses = [bucket.loss_sum for bucket in group if bucket.losses]
        found.append(
            (
                group[-1].step,
                sum(bucket.tokens for bucket in group),
                sum(bucket.bytes_up for bucket in group),
                group[-1].nodes,
                group[-1].at_s,
                pytest.approx(sum(losses) / len(losses)) if losses else None,
                min(losses, default=float("inf")),
                max(losses, default=-float("inf")),
            )
        )
    return found


def plain(buckets: list[Bucket]) -> list[tuple[object, ...]]:
    return [(b.step, b.tokens, b.bytes_up, b.nodes, b.at_s, b.loss, b.loss_min, b.loss_max) for b in buckets]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63, 64, 300, 1001])
def test_a_series_equals_the_reference(count: int) -> None:
    series = Series(buckets_max=16)
    for bucket in steps(count):
        series.add(bucket)
    assert plain(series.points(16)) == dumb(steps(count), series.stride)
    stride = series.stride
    while len(dumb(steps(count), stride)) > 5:
        stride *= 2
    assert plain(series.points(5)) == dumb(steps(count), stride)


def sealed(step: int, nodes: int = 2, loss: float = 3.0) -> RoundSealed:
    counted = tuple(Counted(node_key(node).public.node_id, b"", 4, 8) for node in range(nodes))
    return RoundSealed(
        round=step, step=step, at=100.0 + step, why="", counted=counted, tokens=8 * 32 * nodes, loss=loss,
        learning_rate=1e-3, update_bytes=50, components=9, gather_s=0.0, merge_s=0.0, seal_s=0.0,
    )  # fmt: skip


class Watched:
    """Counts and a history that handle the same events, in the order of a swarm's watchers."""

    def __init__(self, parameters: int = 1000, step: int = 0, sets: tuple[str, ...] = ("wiki", "code")) -> None:
        self.counts = Counts(parameters)
        self.history = History(self.counts, step, 100.0, sets)

    def tell(self, event: Event) -> None:
        self.counts.watch(event)
        self.history.watch(event)


def test_the_history_of_many_rounds_stays_small() -> None:
    watched = Watched(10**9)
    counts, history = watched.counts, watched.history
    for step in range(ROUNDS):
        counts.traffic.received.add("contribution", 123_456_789)
        counts.traffic.sent.add("update", 987_654_321)
        watched.tell(sealed(step, loss=10 / (step + 1)))
        if step % 20 == 0:
            watched.tell(LossMeasured(step, "wiki", 10 / (step + 1)))
    answer = status.series(history, 400)
    encoded = json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
    assert len(encoded) < ANSWER_BYTES_MAX
    assert answer["steps"]["step"][-1] == ROUNDS
    assert answer["steps"]["tokens"][-1] == ROUNDS * 2 * 8 * 32
    assert answer["steps"]["bytes_up"][-1] == counts.bytes_up
    assert answer["steps"]["dense_bytes"][-1] == ROUNDS * ring_bytes_of_all(2, 10**9)
    assert all(
        later >= earlier
        for earlier, later in zip(answer["steps"]["tokens"], answer["steps"]["tokens"][1:], strict=False)
    )
    assert answer["held_out"]["loss_max"][0] == 10.0


def test_a_run_that_has_diverged_says_so_until_a_loss_is_finite_again() -> None:
    watched = Watched()
    curve = watched.history.held_out["wiki"]
    for step, loss, diverged in ((5, 2.0, None), (10, float("nan"), 10), (8, 1.9, 10), (15, 3.0, None)):
        watched.tell(LossMeasured(step, "wiki", loss))
        assert curve.diverged == diverged
    assert (curve.first, curve.newest) == ((5, 2.0), (15, 3.0))


def test_the_page_has_each_loss_under_the_name_of_its_set() -> None:
    """Of sets that an amendment has added, nodes may measure the later one first."""
    watched = Watched(sets=("wiki",))
    for name, loss in (("wiki", 3.0), ("beta", 9.0), ("alpha", 1.0)):
        watched.tell(LossMeasured(20, name, loss))
    curves = status.curves_of(["wiki", "alpha", "beta", "not yet"], watched.history)
    assert [curve.newest for curve in curves] == [(20, 3.0), (20, 1.0), (20, 9.0), None]


async def test_the_history_of_earlier_terms_is_read_from_the_ledger(tmp_path: Path) -> None:
    await asyncio.to_thread(make_run, tmp_path, 3)  # make_run starts its own event loop
    state = open_state(tmp_path)
    term = state.ledger.begin_term()
    state.ledger.record_void(term.number, 3, "no contribution came")
    state.ledger.record_loss(2, "code", 4.5, "coordinator")
    state.ledger.record_loss(2, "gone", 1.5, "nodes")
    state.ledger.record_names({node_key(3).public.node_id: "Ada"})

    async def at_once(piece: object) -> None:
        assert callable(piece)
        piece()

    past = await read_past(
        state.reading_ledger, state.ledger.begin_term().number, 3, 32, ["wiki", "code"], at_once, bucket_of
    )
    rows = list(state.ledger.rows())
    state.close()
    watched = Watched(step=3)
    history = watched.history
    assert not history.complete
    assert history.whole_run() is None
    watched.tell(sealed(3))
    history.begin_with(past)
    assert history.complete
    points = history.series.points(100)
    assert [bucket.step for bucket in points] == [1, 2, 3, 4]
    assert [bucket.update_bytes for bucket in points] == [*(row.body_bytes for row in rows), 50]
    assert list(accumulate(bucket.tokens for bucket in points)) == [2 * 8 * 32 * n for n in range(1, 5)]
    assert history.tokens_before == 3 * 2 * 8 * 32
    assert history.share(node_key(3).public.node_id).rounds == 1
    assert history.share(node_key(1).public.node_id).rounds == 2  # one in an earlier term, one in this term
    assert history.names[node_key(3).public.node_id] == "Ada"
    whole = history.whole_run()
    assert whole is not None
    assert (whole.tokens, whole.since_step, whole.nodes) == (4 * 2 * 8 * 32, 3, len(history.shares()))
    told = {share.node: (share.counted, share.tokens) for share in whole.shares}
    assert told == {node: (share.rounds, share.tokens) for node, share in history.shares().items()}
    assert {share.name for share in whole.shares} == {"Ada", ""}
    curve = history.held_out["code"]
    assert curve.first == curve.newest == (2, 4.5)
    assert [(bucket.step, bucket.loss) for bucket in curve.series.points(100)] == [(2, 4.5)]
    assert history.held_out["wiki"].first is None
    assert set(history.held_out) == {"wiki", "code"}
    assert [(entry.first, entry.last, entry.why) for entry in history.voids] == [(3, 3, "no contribution came")]
    assert status.series(history, 100)["held_out"] == {"set": "wiki", "step": [], **{key: [] for key in LOSSES}}
    assert status.series(history, 100, "code")["held_out"] == {
        "set": "code",
        "step": [2],
        **{key: [4.5] for key in LOSSES},
    }
    answer = status.series(history, 100)["steps"]
    assert answer["bytes_up"][:3] == [None] * 3  # the ledger does not record them


def test_csv_has_every_curve_and_leaves_unknown_fields_empty() -> None:
    watched = Watched(step=1, sets=("wiki", 'a "b", c'))
    history = watched.history
    watched.counts.traffic.received.add("contribution", 70)
    watched.tell(sealed(1, loss=1 / 3))
    watched.tell(LossMeasured(2, 'a "b", c', 2.25))
    watched.tell(sealed(2, loss=float("nan")))
    past = Past(held_out={"wiki": [(0, 5.5)]})
    past.series.add(Bucket(1, tokens=100, nodes=3))
    history.begin_with(past)
    text = curves_csv(history, [Amendment(1, {"demo.k": 8}, "cheaper"), Amendment(1, {"round.samples": 4})]).decode()
    assert text.count("\r\n") == text.count("\n") == 5
    header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    assert header == [*COLUMNS, "held_out_loss:wiki", 'held_out_loss:a "b", c']
    dense = str(ring_bytes_of_all(2, 1000))
    assert rows == [
        ["0", "", "", "", "", "", "", "", "", "5.5", ""],
        ["1", "", "", "100", "", "", "", "3", "", "", ""],
        ["2", "1.0", str(1 / 3), "612", "70", "0", dense, "2", "demo.k = 8: cheaper; round.samples = 4", "", "2.25"],
        ["3", "2.0", "", "1124", "70", "0", str(2 * ring_bytes_of_all(2, 1000)), "2", "", "", ""],
    ]
