"""A real swarm whose coordinator writes to all sinks, and is killed in between."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.prometheus import parsed, read, value
from support.real import ended, real_swarm, run_text, until
from support.sink_readers import wandb_runs
from thinwire_coordinator.hall.ledger.state_directory import open_state

CONTEXT = 64  # tokens of a sample


def test_curves_continue_when_the_coordinator_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415 - slow

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of a test in this process that used wandb
    curves = tmp_path / "curves"
    options = ["--tensorboard", str(curves), "--wandb", "project"]
    options += ["--http", "127.0.0.1:0", "--evaluate-every", "5"]
    with real_swarm(tmp_path) as swarm:
        slow = run_text(100_000, length_ms=500, rounds='pace = "clock"')
        first = swarm.coordinator(slow, *options)
        node = swarm.node("one")
        until(lambda: any(wandb_steps(swarm.state)), "wandb has steps", first, node)
        until((swarm.state / "sinks" / "tensorboard.json").exists, "TensorBoard has steps", first, node)
        first.tell(signal.SIGKILL)
        ended(first)
        state = open_state(swarm.state, read_only=True)  # before a node can join again
        restarted_at = state.ledger.step
        state.close()
        again = swarm.coordinator(None, *options)
        swarm.reached(restarted_at + 5)

        def written(sink: str) -> float:
            told = parsed(read(f"{swarm.ready['page']}/metrics"))
            return value(told, "thinwire_coordinator_sink_items_total", sink=sink, outcome="written")

        until(lambda: all(written(sink) > 0 for sink in ("tensorboard", "wandb")), "all write", again)
        again.tell(signal.SIGTERM)
        assert ended(again) == 0
        assert "Traceback" not in first.text() + again.text()

    stopped = open_state(swarm.state, read_only=True)
    step = stopped.ledger.step
    stopped.close()
    accumulated = EventAccumulator(str(curves))
    accumulated.Reload()
    for tag in ("loss/training", "bytes/up", "tokens", "loss/held_out/held_out"):
        steps = [event.step for event in accumulated.Scalars(tag)]
        assert steps == sorted(set(steps))
        assert steps[0] <= restarted_at < steps[-1] or tag == "loss/held_out/held_out"
    assert [event.step for event in accumulated.Scalars("loss/training")][-1] == step
    totals = {event.step: event.value for event in accumulated.Scalars("tokens")}
    state = open_state(swarm.state, read_only=True)
    samples = [count for _, _, counted in state.ledger.counted_at(0, int(step)) for _, count in counted]
    state.close()
    assert totals[step] == sum(samples) * CONTEXT  # also those of the first term
    up = [event.value for event in accumulated.Scalars("bytes/up")]
    assert up == sorted(up)

    before, after = wandb_steps(swarm.state)
    assert before[-1] <= restarted_at < after[0]
    assert after[-1] == step
    assert len({run_id for run_id, _ in wandb_runs(swarm.state / "sinks")}) == 1


def wandb_steps(state: Path) -> list[list[int]]:
    """The steps of the training curve, by life of the coordinator."""
    return [[row["step"] for row in rows if "loss/training" in row] for _, rows in wandb_runs(state / "sinks")]
