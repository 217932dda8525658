"""Tests sinks: curves read back with the readers of TensorBoard and W&B, and sinks that hang, raise or fall behind."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.sink_readers import wandb_runs
from support.swarm_bench import Bench
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import LossMeasured, RoundSealed
from thinwire_coordinator.hall.observe.sinks.memory import Continued, Fold, Totals, recall
from thinwire_coordinator.hall.observe.sinks.sinks import Sinks, SinkSettings
from thinwire_coordinator.hall.observe.sinks.tensorboard import TensorBoard
from thinwire_coordinator.hall.observe.sinks.wandb import WeightsAndBiases
from thinwire_coordinator.hall.observe.sinks.worker import HELD_OUT, TRAINING, Point, SinkWorker
from thinwire_proto.wire.reasons import Reason
from thinwire_proto.wire.rows import Counted

PATIENCE_S = 60.0


def training(step: int, loss: float = 2.0) -> Point:
    return Point(TRAINING, step, 1000.0 + step, {"loss/training": loss, "nodes": 3}, tokens=10 * step, bytes_up=step)


class Gate:
    """A sink that waits until it is opened, and then raises `error`, if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.got: list[Point] = []
        self.error = error
        self.closed = False

    def write(self, items: Sequence[Point]) -> None:
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.got += items

    def close(self) -> None:
        self.closed = True


def ended(worker: SinkWorker) -> None:
    worker.close()
    worker.join(time.monotonic() + PATIENCE_S)


def test_a_full_queue_drops_and_counts_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    worker: SinkWorker = SinkWorker("tensorboard", gate, queue_max=4)
    worker.start()
    worker.offer(training(0))
    assert gate.entered.wait(PATIENCE_S)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 8):
            worker.offer(training(step))  # returns although the sink hangs
    assert worker.dropped == 3
    assert len(caplog.records) == 1
    gate.open.set()
    ended(worker)
    assert [point.step for point in gate.got] == [0, 1, 2, 3, 4]
    assert (worker.written, worker.failed, gate.closed) == (5, 0, True)


def test_a_sink_that_raises_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(ConnectionError("nobody listens"))
    gate.open.set()
    worker: SinkWorker = SinkWorker("wandb", gate)
    worker.offer(training(1))
    worker.offer(training(2))
    with caplog.at_level(logging.WARNING):
        worker.start()
        assert gate.entered.wait(PATIENCE_S)
        worker.offer(training(3))
        ended(worker)
    assert (worker.written, worker.failed) == (0, 3)
    assert [record.message for record in caplog.records if "nobody listens" in record.message] == [
        "wandb cannot be written: nobody listens; the run goes on, and later points are tried again"
    ]
    assert gate.closed


def test_a_sink_that_hangs_does_not_keep_the_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    worker: SinkWorker = SinkWorker("wandb", gate)
    worker.start()
    worker.offer(training(1))
    assert gate.entered.wait(PATIENCE_S)
    worker.close()
    worker.join(time.monotonic())  # returns
    assert "has not taken its last points" in caplog.text
    gate.open.set()
    worker.join(time.monotonic() + PATIENCE_S)


def sealed(step: int, at: float) -> RoundSealed:
    counted = tuple(Counted(f"{node:032x}", b"", 4, 8) for node in range(2))
    return RoundSealed(
        round=step, step=step, at=at, why="", counted=counted, tokens=512, loss=3.0, learning_rate=1e-3,
        update_bytes=50, components=9, gather_s=0.0, merge_s=0.0, seal_s=0.0,
    )  # fmt: skip


def test_events_fold_to_points_that_continue_the_totals() -> None:
    counts, points = Counts(1000), list[Point]()
    fold = Fold(counts, Totals(10, 5000, 70, 90), points.append, wall=lambda: 7.0)
    for event in (sealed(10, 1.0), sealed(11, 3.0), LossMeasured(11, "wiki", 2.5)):
        counts.traffic.received.add("contribution", 30)
        counts.watch(event)
        fold.watch(event)
    first, second, held_out = points
    assert (first.step, first.tokens, first.bytes_up, first.bytes_down) == (11, 5512, 100, 90)
    assert "tokens_per_s" not in first.values  # nothing is known of the time before
    expected = {"loss/training": 3.0, "learning_rate": 1e-3, "nodes": 2, "tokens": 6024, "tokens_per_s": 256}
    assert second.values == expected | {"bytes/up": 130, "bytes/down": 90}
    assert (held_out.series, held_out.step, held_out.values) == (f"{HELD_OUT} wiki", 11, {"loss/held_out/wiki": 2.5})


def test_tensorboard_reads_a_curve_over_a_restart_without_double_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415 - slow

    folder, memory = tmp_path / "curves", tmp_path / "tensorboard.json"
    for points in (
        [training(1, 3.0), Point(HELD_OUT, 0, 1000.0, {"loss/held_out": 5.5}), training(2, math.nan)],
        [training(2, 9.0), Point(HELD_OUT, 0, 1000.0, {"loss/held_out": 9.0}), training(3, 2.0)],
    ):
        sink = Continued(TensorBoard(folder), recall(memory, str(folder)))
        sink.write(points[:2])
        sink.write(points[2:])
        sink.close()
    read = EventAccumulator(str(folder))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {"loss/training", "loss/held_out", "nodes"}
    losses = [(event.step, event.value, event.wall_time) for event in read.Scalars("loss/training")]
    assert losses[::2] == [(1, 3.0, 1001.0), (3, 2.0, 1003.0)]
    assert losses[1][0] == 2
    assert math.isnan(losses[1][1])
    assert [(event.step, event.value) for event in read.Scalars("loss/held_out")] == [(0, 5.5)]


def test_wandb_continues_its_offline_run_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb  # noqa: PLC0415 - slow

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = []
    for points in ([training(1, 3.0), training(2, 2.5)], [training(2, 9.0), training(3, 2.0)]):
        memory = recall(tmp_path / "wandb.json", "project")
        sink = Continued(WeightsAndBiases("project", memory, tmp_path, {"schedule": {"steps": 9}}), memory)
        sink.write(points)
        sink.close()
        ids.append(memory.run_id)
    wandb.teardown()  # otherwise processes that later tests start share its service
    runs = wandb_runs(tmp_path)
    assert [run_id for run_id, _ in runs] == ids
    assert ids[0] == ids[1]
    rows = [row for _, logged in runs for row in logged]
    assert [(row["step"], row["loss/training"]) for row in rows] == [(1, 3.0), (2, 2.5), (3, 2.0)]
    numbers = [row["_step"] for row in rows]
    assert numbers == sorted(set(numbers))  # wandb refuses a number that does not ascend


async def test_rounds_are_sealed_while_all_sinks_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TensorBoard's folder is a file."""
    (tmp_path / "run").mkdir()
    bench, folder = Bench(tmp_path / "run"), tmp_path / "curves"
    sinks = Sinks(SinkSettings(tensorboard=folder), tmp_path)
    sinks.check()
    folder.rmdir()
    folder.touch()
    with caplog.at_level(logging.WARNING):
        sinks.begin(bench.swarm, sinks.recall(bench.swarm))
        member = bench.join("a")
        await bench.attend(member)
        for seed in range(2):
            assert (await asyncio.wait_for(bench.contribute(member, seed), PATIENCE_S)).reason is Reason.COUNTED
            bench.replica.apply(bench.state.update(bench.state.ledger.row(seed)), b"")
        await sinks.close()
    (items,) = sinks.collect()
    counts = {(sample.labels["sink"], sample.labels["outcome"]): sample.value for sample in items.samples}
    assert counts["tensorboard", "failed"] == 2
    assert counts["tensorboard", "written"] == 0
    assert "tensorboard cannot be written" in caplog.text
    assert not bench.swarm.tasks.failed.done()
    await bench.close()
