"""The measurements of `make bench` on a card, run on any device: every row has a baseline and does the same work."""

from __future__ import annotations

import pytest
import torch

from bench.speed import gpu


def test_each_size_is_compared_with_the_limit_and_the_published_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "COPIED_BYTES", 1 << 16)
    monkeypatch.setattr(gpu, "REPEATS", 1)
    device = gpu.card() or torch.device("cpu")
    found = list(gpu.rows_on(device, [1, 3 * 64 * 128], "this", (64, 128)))
    assert [row.baseline_name for row in found] == 2 * [
        "12 bytes a parameter, copied",
        "the published operations",
        "20 bytes a parameter, copied",
    ]
    for row in found:
        assert row.ours > 0
        assert row.baseline > 0
        assert row.wanted == pytest.approx(3 * row.baseline if "copied" in row.baseline_name else row.baseline / 10)
    floors = [row.baseline for row in found if "copied" in row.baseline_name]
    assert floors[1] / floors[0] == pytest.approx(20 / 12)
    assert floors[2] / floors[0] == pytest.approx(3)


def test_without_a_card_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert list(gpu.rows()) == []
    assert "no card" in capsys.readouterr().err
