"""Processes that a launcher has started train together or not at all."""

from __future__ import annotations

import pytest
import torch

from thinwire import DeMo, Gossip
from thinwire_proto.errors import ConfigError


def step(kind: str) -> None:
    model = torch.nn.Linear(64, 1)
    if kind == "Gossip":
        Gossip(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return
    optimizer = DeMo(model.parameters(), lr=0.1)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", ["Gossip", "DeMo"])
def test_several_processes_without_a_process_group_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would train by itself, and nothing would say so."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=rf"{kind}: 2 processes .*init_process_group"):
        step(kind)


@pytest.mark.parametrize("kind", ["Gossip", "DeMo"])
@pytest.mark.parametrize("started", ["1", ""])
def test_a_process_alone_needs_no_process_group(kind: str, started: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", started)
    step(kind)
